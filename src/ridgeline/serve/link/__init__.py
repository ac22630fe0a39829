"""How processes talk: tensors in shared memory, frames over a socket."""
