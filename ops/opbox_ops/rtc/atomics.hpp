// CUDA's atomic functions, for the types that a device has them for, and its loads and stores with a cache's name.
// Emulated threads take turns, so a plain read and write is atomic.
#define OPBOX_ATOMIC_AS(name, T, expression)                                                     \
  OPBOX_INLINE T name(T *at, T val) { const T old = *at; *at = (expression); return old; }
#define OPBOX_ATOMIC(name, T, expression)      \
  OPBOX_ATOMIC_AS(name, T, expression)         \
  OPBOX_ATOMIC_AS(name##_block, T, expression) \
  OPBOX_ATOMIC_AS(name##_system, T, expression)
OPBOX_ATOMIC(atomicAdd, int, old + val)
OPBOX_ATOMIC(atomicAdd, unsigned, old + val)
OPBOX_ATOMIC(atomicAdd, unsigned long long, old + val)
OPBOX_ATOMIC(atomicAdd, float, old + val)
OPBOX_ATOMIC(atomicAdd, double, old + val)
OPBOX_ATOMIC(atomicSub, int, old - val)
OPBOX_ATOMIC(atomicSub, unsigned, old - val)
OPBOX_ATOMIC(atomicExch, int, val)
OPBOX_ATOMIC(atomicExch, unsigned, val)
OPBOX_ATOMIC(atomicExch, unsigned long long, val)
OPBOX_ATOMIC(atomicExch, float, val)
OPBOX_ATOMIC(atomicMin, int, old < val ? old : val)
OPBOX_ATOMIC(atomicMin, unsigned, old < val ? old : val)
OPBOX_ATOMIC(atomicMin, long long, old < val ? old : val)
OPBOX_ATOMIC(atomicMin, unsigned long long, old < val ? old : val)
OPBOX_ATOMIC(atomicMax, int, old > val ? old : val)
OPBOX_ATOMIC(atomicMax, unsigned, old > val ? old : val)
OPBOX_ATOMIC(atomicMax, long long, old > val ? old : val)
OPBOX_ATOMIC(atomicMax, unsigned long long, old > val ? old : val)
OPBOX_ATOMIC(atomicAnd, int, old & val)
OPBOX_ATOMIC(atomicAnd, unsigned, old & val)
OPBOX_ATOMIC(atomicAnd, unsigned long long, old & val)
OPBOX_ATOMIC(atomicOr, int, old | val)
OPBOX_ATOMIC(atomicOr, unsigned, old | val)
OPBOX_ATOMIC(atomicOr, unsigned long long, old | val)
OPBOX_ATOMIC(atomicXor, int, old ^ val)
OPBOX_ATOMIC(atomicXor, unsigned, old ^ val)
OPBOX_ATOMIC(atomicXor, unsigned long long, old ^ val)
OPBOX_ATOMIC(atomicInc, unsigned, old >= val ? 0 : old + 1)
OPBOX_ATOMIC(atomicDec, unsigned, old == 0 || old > val ? val : old - 1)

#define OPBOX_CAS_AS(name, T) \
  OPBOX_INLINE T name(T *at, T compare, T val) { const T old = *at; if (old == compare) *at = val; return old; }
#define OPBOX_CAS(T) OPBOX_CAS_AS(atomicCAS, T) OPBOX_CAS_AS(atomicCAS_block, T) OPBOX_CAS_AS(atomicCAS_system, T)
OPBOX_CAS(int)
OPBOX_CAS(unsigned)
OPBOX_CAS(unsigned short)
OPBOX_CAS(unsigned long long)

#define OPBOX_LOAD(name) template <class T> OPBOX_INLINE T name(const T *p) { return *p; }
OPBOX_LOAD(__ldg)
OPBOX_LOAD(__ldca)
OPBOX_LOAD(__ldcg)
OPBOX_LOAD(__ldcs)
OPBOX_LOAD(__ldcv)
OPBOX_LOAD(__ldlu)
#define OPBOX_STORE(name) template <class T> OPBOX_INLINE void name(T *p, std::common_type_t<T> v) { *p = v; }
OPBOX_STORE(__stcg)
OPBOX_STORE(__stcs)
OPBOX_STORE(__stwb)
OPBOX_STORE(__stwt)
