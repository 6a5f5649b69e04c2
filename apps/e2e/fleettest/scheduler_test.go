package fleettest

import (
	"errors"
	"unsafe"
)

//go:linkname getm runtime.getm
func getm() unsafe.Pointer

//go:linkname cheaprand runtime.cheaprand
func cheaprand() uint32

//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()

// words is the number of words of the runtime's thread structure that are read. The structure has more words. These
// words contain its random state.
const words = 255

type thread [words]uint64

const (
	// wyrand is the number that each draw adds to the state of the runtime's quick generator.
	wyrand = 0xa0761d6478bd642f
	// chacha is the size, in words, of the slow generator, which lies before the quick one: 32 words of
	// output, 4 of seed, and three counters of half a word.
	chacha = 38
)

// scheduler makes Go's scheduler deterministic for a seed, from pin to unpin. With one P, goroutines run in
// the order in which they became ready, with three exceptions:
//
//   - A select with several ready cases, the iteration over a map, and timers of one instant use the thread's
//     random generators. The scheduler seeds these generators. Other code also draws from them, not always
//     equally often (one-time work, caches), so they are seeded again at every event.
//   - A goroutine that ran for 10 ms of real time, or whose thread had no CPU for that long, is put behind
//     the other goroutines. Here it keeps running (preemptoff).
//   - A long system call gives the P to another thread, and the garbage collector runs at any time. Fleets
//     make no system calls, and the collector is off while they run.
//
// The fields that it writes have no exported name. pin finds them by their behaviour, and fails if it does
// not find them. After a change of the Go release, compare with struct m in runtime2.go.
type scheduler struct {
	m            *thread
	quick, locks int
	moved        bool
}

// pin takes over the thread of the caller.
func pin(seed uint64) (*scheduler, error) {
	procPin()
	defer procUnpin()
	s := &scheduler{m: (*thread)(getm()), quick: -1, locks: -1}

	before := *s.m
	cheaprand()
	for i := range words {
		if s.m[i]-before[i] == wyrand {
			s.quick = i
		}
	}
	if s.quick < chacha {
		return nil, errors.New("the runtime's quick generator was not found: compare chacha and words with struct m of this Go release")
	}

	before = *s.m
	procPin()
	for i := range words {
		low, high := uint32(s.m[i])-uint32(before[i]), uint32(s.m[i]>>32)-uint32(before[i]>>32)
		if low == 1 && high == 0 {
			s.locks = i
		}
	}
	procUnpin()
	if s.locks < 2 || *s.preemptoff() != "" {
		return nil, errors.New("the runtime's preemptoff was not found: compare it with struct m of this Go release")
	}
	*s.preemptoff() = "fleettest"
	s.event(seed)
	return s, nil
}

// preemptoff lies before locks: string preemptoff, int32 locks.
func (s *scheduler) preemptoff() *string { return (*string)(unsafe.Pointer(&s.m[s.locks-2])) }

// event seeds the generators for the next events. No two calls may run at the same time.
func (s *scheduler) event(x uint64) {
	if unsafe.Pointer(s.m) != getm() {
		s.moved = true
		return
	}
	s.m[s.quick] = splitmix(x)
	slow := s.m[s.quick-chacha : s.quick]
	for i := range uint64(4) {
		slow[32+i] = splitmix(x ^ (i+1)<<56)
	}
	slow[36], slow[37] = 0, 0 // the block is used up, so the next draw begins a new block
}

// unpin releases the thread. It returns an error if goroutines ran on another thread.
func (s *scheduler) unpin() error {
	*s.preemptoff() = ""
	if s.moved {
		return errors.New("goroutines were moved to another thread")
	}
	return nil
}

func splitmix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
