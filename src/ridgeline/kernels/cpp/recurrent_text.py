"""The C++ of recurrent kernels: what is the same for all sizes, and one cell for each kind."""

from __future__ import annotations

ROWS = """
constexpr i64 XW = GATES * L, RW = EARLY * L, PARTS = (B + BC - 1) / BC, CHUNKS = (S + TC - 1) / TC;
struct Args {
  const float *x, *w, *r, *r_late, *bias, *h_given, *c_given;
  const int* lens;
  float *y, *h_last, *c_last;
};
struct Shared {
  alignas(64) float ahead[BLOCKS * TC * BC * XW];  // x times W, panel by panel
  alignas(64) float h[2][BC * HP];
  alignas(64) float c[BC * HP];
  alignas(64) float mid[BC * HP];
};
template <int NV, int R> struct Sums {
  enum { room = REGISTERS / (NV * R), n = room >= 4 ? 4 : room >= 2 ? 2 : 1 };
};
template <int NV, int R>
FN void rl_some(const float*& x, i64 stride, const float* w, i64 depth, float*& out) {
  rl_tile<R, NV * L, Sums<NV, R>::n>(x, stride, w, depth, out, true);
  x += R * stride;
  out += R * NV * L;
}
// out[rows][NV * L] = x[rows][depth] * w[depth][NV * L]
template <int NV>
FN void rl_rows(const float* x, i64 stride, const float* w, i64 depth, float* out, i64 rows) {
  for (; rows >= TILE_ROWS; rows -= TILE_ROWS) rl_some<NV, TILE_ROWS>(x, stride, w, depth, out);
  if (rows & 4) rl_some<NV, 4>(x, stride, w, depth, out);
  if (rows & 2) rl_some<NV, 2>(x, stride, w, depth, out);
  if (rows & 1) rl_some<NV, 1>(x, stride, w, depth, out);
}
FN i64 rl_width(i64 j) { return H % L == 0 || j + 1 < BLOCKS ? L : H % L; }
FN void rl_copy(float* to, const float* from, i64 j) { __builtin_memcpy(to, from, 4 * rl_width(j)); }
FN i64 rl_state(int d, i64 b, i64 j) { return (BATCH_FIRST ? b * N + d : d * B + b) * H + j * L; }
FN i64 rl_ahead(i64 j, i64 t, i64 b) {
  return (j * TC * BC + (BATCH_FIRST ? b * TC + t : t * BC + b)) * XW;
}
FN void rl_meet() {
  if constexpr (IN_TEAM) {
#pragma omp barrier
  }
}
// one step of one unit: t in the whole sequence, in_chunk among what was multiplied ahead
struct Step {
  i64 first, last, b0, rows, t, in_chunk;
  int now;
};
FN void rl_show(const Args& a, const Step& e, int d, i64 b, i64 j, const float* h) {
  const i64 at = BATCH_FIRST ? ((e.b0 + b) * S + e.t) * N + d : (e.t * N + d) * B + e.b0 + b;
  if (a.y) rl_copy(a.y + at * H + j * L, h, j);
}
static const float ZEROS[L] = {};
// a sequence past its end shows zeros and keeps its state
FN bool rl_over(const Args& a, Shared& s, const Step& e, int d, i64 b, i64 j) {
  if (!HAS_LENS || e.t < a.lens[e.b0 + b]) return false;
  __builtin_memcpy(s.h[!e.now] + b * HP + j * L, s.h[e.now] + b * HP + j * L, 4 * L);
  rl_show(a, e, d, b, j, ZEROS);
  return true;
}
"""


def _one_pass(cell: str) -> str:
    """A step that multiplies by R once: `cell` makes the state `made` of one sequence and one block of units.

    It finds the products with the state in `g`, those with the input in `u`, and the block's `bias`.
    """
    return _ONE_PASS.replace("CELL", cell.strip("\n"))


_ONE_PASS = """
template <int D> FN void rl_step(const Args& a, Shared& s, const Step& e) {
  for (i64 j = e.first; j < e.last; ++j) {
    alignas(64) float sums[BC * RW];
    rl_rows<EARLY>(s.h[e.now], HP, a.r + (D * BLOCKS + j) * H * RW, H, sums, e.rows);
    const float* bias = a.bias + (D * BLOCKS + j) * BIAS;
    for (i64 b = 0; b < e.rows; ++b) {
      if (rl_over(a, s, e, D, b, j)) continue;
      const float *g = sums + b * RW, *u = s.ahead + rl_ahead(j, e.in_chunk, b);
      float* made = s.h[!e.now] + b * HP + j * L;
CELL
      rl_show(a, e, D, b, j, made);
    }
  }
  rl_meet();
}
"""

_LSTM = _one_pass(
    """
      const float* peep = bias + (HAS_PEEPHOLES ? 4 * L : 0);
      float* cell = s.c + b * HP + j * L;
#pragma omp simd
      for (int l = 0; l < L; ++l) {
        const float before = cell[l];
        float i = g[l] + u[l] + bias[l], o = g[L + l] + u[L + l] + bias[L + l];
        float f = g[2 * L + l] + u[2 * L + l] + bias[2 * L + l];
        const float n = Acts<D>::g(g[3 * L + l] + u[3 * L + l] + bias[3 * L + l]);
        if (HAS_PEEPHOLES) i += peep[l] * before, f += peep[2 * L + l] * before;
        i = Acts<D>::f(i);
        f = COUPLED ? 1.0f - i : Acts<D>::f(f);
        const float c = f * before + i * n;
        if (HAS_PEEPHOLES) o += peep[L + l] * c;
        cell[l] = c;
        made[l] = Acts<D>::f(o) * Acts<D>::h(c);
      }
"""
)

_GRU_LATE = _one_pass(
    """
      const float* before = s.h[e.now] + b * HP + j * L;
#pragma omp simd
      for (int l = 0; l < L; ++l) {
        const float z = Acts<D>::f(g[l] + u[l] + bias[l]);
        const float reset = Acts<D>::f(g[L + l] + u[L + l] + bias[L + l]);
        const float late = reset * (g[2 * L + l] + bias[3 * L + l]);
        const float n = Acts<D>::g(u[2 * L + l] + bias[2 * L + l] + late);
        made[l] = (1.0f - z) * n + z * before[l];
      }
"""
)

_GRU = """
// all units are reset before any is multiplied: two passes, with z kept in c and the reset ones in mid
template <int D> FN void rl_reset(const Args& a, Shared& s, const Step& e) {
  for (i64 j = e.first; j < e.last; ++j) {
    alignas(64) float sums[BC * RW];
    rl_rows<EARLY>(s.h[e.now], HP, a.r + (D * BLOCKS + j) * H * RW, H, sums, e.rows);
    const float* bias = a.bias + (D * BLOCKS + j) * BIAS;
    for (i64 b = 0; b < e.rows; ++b) {
      const float *g = sums + b * RW, *u = s.ahead + rl_ahead(j, e.in_chunk, b);
      const float* before = s.h[e.now] + b * HP + j * L;
      float *z = s.c + b * HP + j * L, *mid = s.mid + b * HP + j * L;
#pragma omp simd
      for (int l = 0; l < L; ++l) {
        z[l] = Acts<D>::f(g[l] + u[l] + bias[l]);
        mid[l] = Acts<D>::f(g[L + l] + u[L + l] + bias[L + l]) * before[l];
      }
    }
  }
  rl_meet();
}
template <int D> FN void rl_step(const Args& a, Shared& s, const Step& e) {
  rl_reset<D>(a, s, e);
  for (i64 j = e.first; j < e.last; ++j) {
    alignas(64) float sums[BC * L];
    rl_rows<1>(s.mid, HP, a.r_late + (D * BLOCKS + j) * H * L, H, sums, e.rows);
    const float* bias = a.bias + (D * BLOCKS + j) * BIAS + 2 * L;
    for (i64 b = 0; b < e.rows; ++b) {
      if (rl_over(a, s, e, D, b, j)) continue;
      const float *g = sums + b * L, *u = s.ahead + rl_ahead(j, e.in_chunk, b) + 2 * L;
      const float *before = s.h[e.now] + b * HP + j * L, *z = s.c + b * HP + j * L;
      float* made = s.h[!e.now] + b * HP + j * L;
#pragma omp simd
      for (int l = 0; l < L; ++l)
        made[l] = (1.0f - z[l]) * Acts<D>::g(g[l] + u[l] + bias[l]) + z[l] * before[l];
      rl_show(a, e, D, b, j, made);
    }
  }
  rl_meet();
}
"""

_RNN = _one_pass(
    """
#pragma omp simd
      for (int l = 0; l < L; ++l) made[l] = Acts<D>::f(g[l] + u[l] + bias[l]);
"""
)

CELLS = {"LSTM": _LSTM, "GRU": _GRU, "GRU_LATE": _GRU_LATE, "RNN": _RNN}

FRAME = """
FN void rl_begin(const float* given, float* to, int d, i64 b0, i64 b, i64 j) {
  float* at = to + b * HP + j * L;
  for (int l = 0; l < L; ++l) at[l] = 0.0f;
  if (given) rl_copy(at, given + rl_state(d, b0 + b, j), j);
}
template <int D> FN void rl_multiply_ahead(const Args& a, Shared& s, const Step& e, i64 t0, i64 steps) {
  for (i64 j = e.first; j < e.last; ++j) {
    const float* w = a.w + (D * BLOCKS + j) * I * XW;
    if (BATCH_FIRST) {
      for (i64 b = 0; b < e.rows; ++b)
        rl_rows<GATES>(a.x + ((e.b0 + b) * S + t0) * I, I, w, I, s.ahead + rl_ahead(j, 0, b), steps);
    } else if (BC == B) {
      rl_rows<GATES>(a.x + t0 * B * I, I, w, I, s.ahead + rl_ahead(j, 0, 0), steps * B);
    } else {
      for (i64 t = 0; t < steps; ++t)
        rl_rows<GATES>(a.x + ((t0 + t) * B + e.b0) * I, I, w, I, s.ahead + rl_ahead(j, t, 0), e.rows);
    }
  }
}
// some sequences of the batch in one direction; a team shares the hidden units
template <int D> __attribute__((noinline)) static void
rl_unit(const Args& a, Shared& s, i64 b0, i64 rank, i64 team) {
  Step e = {BLOCKS * rank / team, BLOCKS * (rank + 1) / team, b0, b0 + BC < B ? BC : B - b0, 0, 0, 0};
  for (i64 b = 0; b < e.rows; ++b)
    for (i64 j = e.first; j < e.last; ++j) {
      rl_begin(a.h_given, s.h[0], D, b0, b, j);
      rl_begin(a.c_given, s.c, D, b0, b, j);
    }
  rl_meet();
  for (i64 chunk = 0; chunk < CHUNKS; ++chunk) {
    const i64 t0 = (Acts<D>::is_reverse ? CHUNKS - 1 - chunk : chunk) * TC;
    const i64 steps = t0 + TC < S ? TC : S - t0;
    rl_multiply_ahead<D>(a, s, e, t0, steps);
    for (i64 i = 0; i < steps; ++i, e.now ^= 1) {
      e.in_chunk = Acts<D>::is_reverse ? steps - 1 - i : i;
      e.t = t0 + e.in_chunk;
      rl_step<D>(a, s, e);
    }
  }
  for (i64 b = 0; b < e.rows; ++b)
    for (i64 j = e.first; j < e.last; ++j) {
      const i64 at = rl_state(D, b0 + b, j);
      // a sequence whose length is 0 ends in zeros, not in the state it was given
      const bool is_empty = HAS_LENS && a.lens[b0 + b] <= 0;
      if (a.h_last) rl_copy(a.h_last + at, is_empty ? ZEROS : s.h[e.now] + b * HP + j * L, j);
      if (a.c_last) rl_copy(a.c_last + at, is_empty ? ZEROS : s.c + b * HP + j * L, j);
    }
}
FN void rl_part(const Args& a, Shared& s, i64 unit, i64 rank, i64 team) {
  const i64 b0 = unit % PARTS * BC;
  if (N == 1 || unit / PARTS == 0) return rl_unit<0>(a, s, b0, rank, team);
  if constexpr (N == 2) rl_unit<1>(a, s, b0, rank, team);
}
"""
