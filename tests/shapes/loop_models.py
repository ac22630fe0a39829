"""Control flow of odd forms: each a model and the inputs to run it with, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from moving_models import close, expected, model_of, rand

import ridgeline
from ridgeline.frontend.loop_results import with_named_results

Feeds = dict[str, np.ndarray]
K = np.float32([0.5, 2.0, -1.0, 1.5])


def xs(*rows: int, **more: Any) -> Callable[[], list[Feeds]]:
    """One run for each number of rows, and for each value of what else there is."""

    def make() -> list[Feeds]:
        runs = []
        for place, count in enumerate(rows):
            feeds = {"x": rand(count, 4, seed=place)}
            runs.append(feeds | {name: np.array(values[place]) for name, values in more.items()})
        return runs

    return make


def counts(*n: int, rows: tuple[int, ...] = ()) -> Callable[[], list[Feeds]]:
    return xs(*(rows or (3,) * len(n)), n=[np.int64(each) for each in n])


TEXTS: dict[str, tuple[str, Callable[[], list[Feeds]]]] = {
    "a trip count": ("""g (float[T,4] x, int64 n) => (float[T,4] y, float[K,T,4] z) {
        y, z = Loop (n, , x) < body = b (int64 i, bool go, float[T,4] a)
            => (bool on, float[T,4] w, float[T,4] s) {
            on = Identity(go) f = Cast <to = 1> (i) m = Mul(a, k) w = Add(m, f) s = Identity(a) } > }""",
        counts(4, 0, 1, 2, 2, 4, rows=(3, 3, 3, 5, 5, 3))),
    "a trip count of one element": ("""g (float[T,4] x, int64[1] n) => (float[T,4] y) {
        y = Loop (n, , x) < body = b (int64 i, bool go, float[T,4] a) => (bool on, float[T,4] w) {
            on = Identity(go) w = Mul(a, k) } > }""",
        xs(3, 3, 3, n=[[2], [0], [3]])),
    "a condition": ("""g (float[T,4] x) => (float[T,4] y, int64 trips) {
        c = Constant <value = bool {1}> () zero = Constant <value_int = 0> ()
        y, trips = Loop (, c, x, zero) < body = b (int64 i, bool go, float[T,4] a, int64 t)
            => (bool on, float[T,4] w, int64 t2) {
            one = Constant <value_int = 1> () h = Constant <value_float = 0.5> ()
            q = Abs(a) w = Mul(q, h) m = ReduceMax <keepdims = 0> (w) l = Constant <value_float = 0.01> ()
            on = Greater(m, l) t2 = Add(t, one) } > }""",
        xs(3, 5, 3, 3)),
    "a condition that is false": ("""g (float[T,4] x, bool c, int64 n) => (float[T,4] y, float[K,T,4] z) {
        y, z = Loop (n, c, x) < body = b (int64 i, bool go, float[T,4] a)
            => (bool on, float[T,4] w, float[T,4] s) {
            on = Not(go) w = Mul(a, k) s = Neg(w) } > }""",
        xs(3, 3, 3, 3, c=[False, True, False, True], n=[np.int64(5), np.int64(5), np.int64(0), np.int64(0)])),
    "a condition that the trips decide": ("""g (float[T,4] x, int64 n) => (float[T,4] y) {
        c = Constant <value = bool {1}> ()
        y = Loop (n, c, x) < body = b (int64 i, bool go, float[T,4] a) => (bool on, float[T,4] w) {
            three = Constant <value_int = 3> () l = Less(i, three) on = And(l, go) w = Mul(a, k) } > }""",
        counts(2, 9, 1, 0, 9)),
    "a condition that is constant": ("""g (float[T,4] x, int64 n) => (float[T,4] y) {
        y = Loop (n, , x) < body = b (int64 i, bool go, float[T,4] a) => (bool on, float[T,4] w) {
            on = Constant <value = bool {1}> () w = Mul(a, k) } > }""",
        counts(3, 0, 2)),
    "a condition that ends at once": ("""g (float[T,4] x, int64 n) => (float[T,4] y) {
        y = Loop (n, , x) < body = b (int64 i, bool go, float[T,4] a) => (bool on, float[T,4] w) {
            on = Constant <value = bool {0}> () w = Mul(a, k) } > }""",
        counts(3, 0, 2)),
    "states that turn": ("""g (float[T,4] x, int64 n) => (float[T,4] p, float[T,4] q, float[T,4] r) {
        h = Neg(x) e = Mul(x, k)
        p, q, r = Loop (n, , x, h, e) < body = b (int64 i, bool go, float[T,4] a, float[T,4] b1, float[T,4] c)
            => (bool on, float[T,4] b2, float[T,4] c2, float[T,4] a2) {
            on = Identity(go) b2 = Identity(b1) c2 = Identity(c) a2 = Mul(a, k) } > }""",
        counts(0, 1, 2, 3, 7)),
    "states that change places": ("""g (float[T,4] x, int64 n) => (float[T,4] p, float[T,4] q,
            float[K,T,4] z) {
        h = Neg(x)
        p, q, z = Loop (n, , x, h) < body = b (int64 i, bool go, float[T,4] a, float[T,4] b1)
            => (bool on, float[T,4] b2, float[T,4] a2, float[T,4] s) {
            on = Identity(go) b2 = Identity(b1) a2 = Identity(a) s = Identity(a) } > }""",
        counts(1, 2, 5)),
    "a state that stays and one that is doubled": ("""g (float[T,4] x, int64 n)
            => (float[T,4] p, float[T,4] q, float[T,4] r, float[K,T,4] z) {
        p, q, r, z = Loop (n, , x, x, x) < body = b (int64 i, bool go, float[T,4] a, float[T,4] b1,
            float[T,4] c)
            => (bool on, float[T,4] a2, float[T,4] b2, float[T,4] b3, float[T,4] s) {
            on = Identity(go) a2 = Identity(a) b2 = Mul(b1, k) b3 = Identity(b2) s = Identity(c) } > }""",
        counts(0, 1, 3)),
    "states from outside": ("""g (float[T,4] x, int64 n) => (float[T,4] p, float[T,4] q, float[T,4] r) {
        h = Exp(x)
        p, q, r = Loop (n, , x, x, h) < body = b (int64 i, bool go, float[T,4] a, float[T,4] b1, float[T,4] c)
            => (bool on, float[T,4] a2, float[T,4] b2, float[T,4] c2) {
            on = Identity(go) a2 = Identity(h) b2 = Add(a, h) c2 = Identity(x) } > }""",
        counts(0, 1, 2, 3)),
    "a state that is a part of itself": ("""g (float[T,4] x, int64 n) => (float[T,4] y, float[K,2,4] z) {
        y, z = Loop (n, , x) < body = b (int64 i, bool go, float[T,4] a)
            => (bool on, float[T,4] w, float[U,4] s) {
            on = Identity(go) one = Constant <value_ints = [1]> () far = Constant <value_ints = [99]> ()
            zero = Constant <value_ints = [0]> ()
            s = Slice(a, one, far, zero) first = Slice(a, zero, one, zero)
            w = Concat <axis = 0> (s, first) } > }""",
        counts(1, 2, 5)),
    "a state that grows": ("""g (float[T,4] x, int64 n) => (float[U,4] y, float[T,4] q, float[K,T,4] z) {
        y, q, z = Loop (n, , x, x) < body = b (int64 i, bool go, float[V,4] a, float[T,4] c)
            => (bool on, float[W,4] w, float[T,4] d, float[T,4] s) {
            on = Identity(go) d = Mul(c, k) w = Concat <axis = 0> (a, d) s = Identity(c) } > }""",
        counts(3, 0, 5, 5, 1, rows=(3, 3, 3, 3, 5))),
    "a state that shrinks": ("""g (float[T,4] x, int64 n) => (float[U,4] y) {
        y = Loop (n, , x) < body = b (int64 i, bool go, float[V,4] a) => (bool on, float[W,4] w) {
            one = Constant <value_ints = [1]> () far = Constant <value_ints = [99]> ()
            zero = Constant <value_ints = [0]> () on = Identity(go)
            s = Slice(a, one, far, zero) w = Mul(s, k) } > }""",
        counts(3, 5, 0, rows=(4, 4, 4))),
    "states of other types": ("""g (float[T,4] x, int64 n) => (double s, bool[T,4] m, int64[2] p) {
        z = Constant <value = double {0.0}> () zero = Constant <value_float = 0.0> ()
        m0 = Greater(x, zero) p0 = Constant <value_ints = [1, 1]> ()
        s, m, p = Loop (n, , z, m0, p0) < body = b (int64 i, bool go, double a, bool[T,4] c, int64[2] f)
            => (bool on, double a2, bool[T,4] c2, int64[2] f2) {
            on = Identity(go) d = Cast <to = 11> (i) a2 = Add(a, d) c2 = Not(c)
            first, second = Split <num_outputs = 2> (f) sum = Add(first, second)
            f2 = Concat <axis = 0> (second, sum) } > }""",
        counts(0, 1, 10)),
    "results that nobody wants": ("""g (float[T,4] x, int64 n) => (float[K,T,4] z) {
        y, , z = Loop (n, , x, x) < body = b (int64 i, bool go, float[T,4] a, float[T,4] c)
            => (bool on, float[T,4] w, float[T,4] d, float[T,4] s) {
            on = Identity(go) w = Mul(a, k) d = Add(c, w) s = Sub(d, w) } > }""",
        counts(1, 4)),
    "no state": ("""g (float[T,4] x, int64 n) => (float[K,T,4] z) {
        c = Constant <value = bool {1}> ()
        z = Loop (n, c) < body = b (int64 i, bool go) => (bool on, float[T,4] s) {
            on = Identity(go) f = Cast <to = 1> (i) s = Mul(x, f) } > }""",
        counts(1, 4, 0)),
    "a loop in a branch in a loop": ("""g (float[T,4] x, int64 n) => (float[T,4] y) {
        h = Exp(x)
        y = Loop (n, , x) < body = b (int64 i, bool go, float[T,4] a) => (bool on, float[T,4] w) {
            on = Identity(go) two = Constant <value_int = 2> () r = Mod(i, two)
            zero = Constant <value_int = 0> () even = Equal(r, zero)
            w = If (even) < then_branch = t () => (float[T,4] u) {
                    u = Loop (i, , a) < body = c (int64 j, bool go2, float[T,4] d) => (bool on2,
            float[T,4] e) {
                        on2 = Identity(go2) o = Mul(d, k) e = Tanh(o) } > },
                else_branch = f () => (float[T,4] v) { s = Add(a, h) v = Softmax(s) } > } > }""",
        counts(0, 1, 2, 5, 3)),
    "a loop in a loop that trips as often": ("""g (float[T,4] x, int64 n) => (float[T,4] y, float[K,T,4] z) {
        y, z = Loop (n, , x) < body = b (int64 i, bool go, float[T,4] a)
            => (bool on, float[T,4] w, float[T,4] s) {
            on = Identity(go)
            w = Loop (i, go, a) < body = c (int64 j, bool go2, float[T,4] d) => (bool on2, float[T,4] e) {
                on2 = Identity(go2) f = Cast <to = 1> (j) o = Mul(d, k) e0 = Add(o, f) e = Sub(e0, x) } >
            s = Sub(w, a) } > }""",
        counts(1, 4, 4, 0, 2)),
    "branches that compute nothing": ("""g (float[T,4] x, bool c) => (float[T,4] y, float[T,4] z) {
        h = Neg(x)
        y, z = If (c) < then_branch = t () => (float[T,4] a, float[T,4] b) { a = Identity(x) b =
            Identity(h) },
            else_branch = f () => (float[T,4] d, float[T,4] e) { d = Identity(h) e = Identity(h) } > }""",
        xs(3, 3, 3, c=[True, False, True])),
    "branches of other shapes": ("""g (float[T,4] x, bool c) => (float[U,V] y) {
        w = If (c) < then_branch = t () => (float[U,V] a) { a = Transpose <perm = [1, 0]> (x) },
            else_branch = f () => (float[U,V] d) { d = Concat <axis = 0> (x, x) } >
        y = Relu(w) }""",
        xs(3, 3, 5, 3, c=[True, False, False, True])),
    "a branch in a branch": ("""g (float[T,4] x, bool c, bool d) => (float[T,4] y) {
        y = If (c) < then_branch = t () => (float[T,4] a) {
                a = If (d) < then_branch = t2 () => (float[T,4] p) { p = Mul(x, k) },
                    else_branch = f2 () => (float[T,4] q) { q = Exp(x) } > },
            else_branch = f () => (float[T,4] r) { r = Softmax(x) } > }""",
        xs(3, 3, 3, 3, c=[True, True, False, False], d=[True, False, True, False])),
    "sizes that data decides in a loop": ("""g (float[T,4] x, int64 n) => (int64 y) {
        zero = Constant <value_int = 0> ()
        y, last = Loop (n, , zero, x) < body = b (int64 i, bool go, int64 t, float[T,4] a)
            => (bool on, int64 t2, float[T,4] w) {
            on = Identity(go) w = Mul(a, k) r = Relu(w) found = NonZero(r) s = Shape <start = 1> (found)
            none = Constant <value_ints = [0]> () c = Squeeze(s, none) t2 = Add(t, c) } > }""",
        counts(1, 3, 0, 3)),
    "scans of two inputs both ways": ("""g (float[T,4] x) => (float[4] y, float[4,T] z, float[T,4] u) {
        i = Constant <value_floats = [0.0, 0.0, 0.0, 0.0]> () t = Transpose <perm = [1, 0]> (x)
        y, z, u = Scan <num_scan_inputs = 2, scan_input_axes = [-1, 0], scan_input_directions = [1, 0],
            scan_output_axes = [-1, 0], scan_output_directions = [0, 1],
            body = b (float[4] s, float[4] p, float[4] q) => (float[4] so, float[4] o, float[4] o2) {
            d = Mul(s, k) e = Add(d, p) so = Sub(e, q) o = Identity(s) o2 = Identity(p) }> (i, t, x) }""",
        xs(3, 1, 5, 3)),
    "a scan without a state": ("""g (float[T,4] x) => (float[T,4] z) {
        z = Scan <num_scan_inputs = 1,
            body = b (float[4] p) => (float[4] o) { m = Mul(p, k) o = Softmax(m) }> (x) }""",
        xs(3, 1, 5)),
    "a scan that hands its slices on": ("""g (float[T,4] x) => (float[4] y, float[T,4] z) {
        i = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> ()
        y, z = Scan <num_scan_inputs = 1,
            body = b (float[4] s, float[4] p) => (float[4] so, float[4] o) {
            so = Identity(p) o = Identity(s) }> (i, x) }""",
        xs(3, 1, 5)),
    "a loop in a scan": ("""g (float[T,4] x, int64 n) => (float[4] y, float[T,4] z) {
        i = Constant <value_floats = [0.0, 0.0, 0.0, 0.0]> ()
        y, z = Scan <num_scan_inputs = 1,
            body = b (float[4] s, float[4] p) => (float[4] so, float[4] o) {
            so = Loop (n, , s) < body = c (int64 j, bool go, float[4] d) => (bool on, float[4] e) {
                on = Identity(go) e0 = Mul(d, k) e = Add(e0, p) } >
            o = Tanh(so) }> (i, x) }""",
        counts(2, 0, 3)),
    "what follows a loop": ("""g (float[T,4] x, int64 n) => (float[T,4] y, float[T,4] u, float[T,4] v) {
        h = MatMul(x, wide)
        y = Loop (n, , h) < body = b (int64 i, bool go, float[T,4] a) => (bool on, float[T,4] w) {
            on = Identity(go) w = Mul(a, k) } >
        o = MatMul(y, wide) p = Softmax(o) u = Add(p, y) q = Tanh(h) v = MatMul(q, wide) }""",
        counts(2, 0, 3, 2, rows=(3, 3, 5, 3))),
    "one value that is three results": ("""g (float[T,4] x, int64 n) => (float[T,4] y, float[T,4] q,
            float[K,T,4] z) {
        y, q, z = Loop (n, , x, x) < body = b (int64 i, bool go, float[T,4] a, float[T,4] c)
            => (bool go, float[T,4] w, float[T,4] w, float[T,4] w) { w = Mul(a, k) } > }""", counts(1,0,3)),
    "inputs as results": ("""g (float[T,4] x, int64 n) => (float[T,4] y, float[T,4] q, float[K,T,4] z) {
        y, q, z = Loop (n, , x, x) < body = b (int64 i, bool go, float[T,4] a, float[T,4] c)
            => (bool go, float[T,4] c, float[T,4] a, float[T,4] a) { u = Mul(a, k) } > }""", counts(1,0,3)),
    "a negative trip count": ("""g (float[T,4] x, int64 n) => (float[T,4] y) {
        y = Loop (n, , x) < body = b (int64 i, bool go, float[T,4] a)
            => (bool on, float[T,4] w) { on = Identity(go) w = Mul(a, k) } > }""", counts(-1,2,-5)),
    "a state that becomes a constant": ("""g (float[T,4] x, int64 n) => (float[T,4] y, float[2] q) {
        z = Constant <value_floats = [0.0, 0.0]> ()
        y, q = Loop (n, , x, z) < body = b (int64 i, bool go, float[T,4] a, float[2] c)
            => (bool on, float[T,4] w, float[2] inside) <float[2] inside = {1.0, 2.0}> { on =
            Identity(go) w = Mul(a, k) } > }""", counts(1,0,3)),
    "a value from outside, stacked": ("""g (float[T,4] x, int64 n) => (float[T,4] y, float[K,T,4] q) {
        h = Exp(x)
        y, q = Loop (n, , x) < body = b (int64 i, bool go, float[T,4] a)
            => (bool on, float[T,4] w, float[T,4] s) { on = Identity(go) w = Mul(a, k) s = Identity(h) }
            > }""", counts(1,0,3)),
    "the count and the condition as results": ("""g (float[T,4] x, int64 n) => (int64 y, int64[K] q,
            bool[K] r) {
        z = Constant <value_int = 7> ()
        y, q, r = Loop (n, , z) < body = b (int64 i, bool go, int64 a)
            => (bool on, int64 j, int64 s, bool t) { on = Identity(go) j = Identity(i) s = Identity(a) t
            = Identity(go) } > }""", counts(1,0,3)),
    "a branch by a condition of one element": ("""g (float[T,4] x, bool[1] c) => (float[T,4] y) {
        y = If (c) < then_branch = t () => (float[T,4] a) { a = Mul(x, k) }, else_branch = f () =>
            (float[T,4] b) { b = Exp(x) } > }""", xs(3, 3, c=[[True],[False]])),
    "conditions of one element": ("""g (float[T,4] x, int64 n, bool[1] c) => (float[T,4] y) {
        y = Loop (n, c, x) < body = b (int64 i, bool[1] go, float[T,4] a)
            => (bool[1] on, float[T,4] w) { on = Identity(go) w = Mul(a, k) } > }""",
            xs(3,3,3,n=[np.int64(2)]*3,c=[[True],[False],[True]])),
    "a known number of trips": ("""g (float[T,4] x) => (float[T,4] y, float[5,T,4] z, float[5,T,4] u) {
        n = Constant <value_int = 5> ()
        y, z = Loop (n, , x) < body = b (int64 i, bool go, float[T,4] a)
            => (bool on, float[T,4] w, float[T,4] s) { on = Identity(go) w = Mul(a, k) s = Tanh(a) } > u
            = Exp(z) }""", xs(3,5,3)),
    "a known number of trips, ended early": ("""g (float[T,4] x) => (float[T,4] y, float[K,T,4] z,
            float[K,T,4] u) {
        n = Constant <value_int = 5> ()
        y, z = Loop (n, , x) < body = b (int64 i, bool go, float[T,4] a)
            => (bool on, float[T,4] w, float[T,4] s) { three = Constant <value_int = 3> () on = Less(i,
            three) w = Mul(a, k) s = Tanh(a) } > u = Exp(z) }""", xs(3,5,3)),
    "a state that keeps its size at some sizes": ("""g (float[T,4] x, int64 n) => (float[U,4] y) {
        y0 = Loop (n, , x) < body = b (int64 i, bool go, float[V,4] a)
            => (bool on, float[W,4] w) { zero = Constant <value_ints = [0]> () three = Constant
            <value_ints = [3]> () s = Slice(a, zero, three, zero) on = Identity(go) w = Mul(s, k) } > y =
            Exp(y0) }""", counts(2,2,0,3,rows=(3,5,5,2))),
    "a scan that reads the count of the loop around": ("""g (float[T,4] x, int64 n) => (float[T,4] y) {
        y = Loop (n, , x) < body = b (int64 i, bool go, float[T,4] a) => (bool on, float[T,4] w) {
            on = Identity(go) w = Scan <num_scan_inputs = 1, body = c (float[4] p) => (float[4] q) {
               f = Cast <to = 1> (i) q0 = Mul(p, k) q = Add(q0, f) } > (a) } > }""", counts(2,0,3)),
}  # fmt: skip
WIDE = rand(4, 4, seed=11)


def control_model(name: str) -> onnx.ModelProto:
    text = TEXTS[name][0]
    weights = {"k": K} if "k)" in text else {}
    return model_of(text, **weights, **({"wide": WIDE} if "wide)" in text else {}))


def control_feeds(name: str) -> list[Feeds]:
    return TEXTS[name][1]()


def first_runs(engine: ridgeline.Engine, name: str) -> list[tuple[Feeds, Feeds]]:
    """The feeds of a model with what the engine makes of them, held against ONNX Runtime."""
    model, made = with_named_results(control_model(name)), []
    for feeds in control_feeds(name):
        made.append((feeds, engine.run(feeds)))
        close(made[-1][1], expected(model, feeds))
    return made
