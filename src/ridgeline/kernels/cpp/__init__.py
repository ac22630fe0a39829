"""C++ generated from region bodies for the CPU: source text, compiler, no timing and no selection."""
