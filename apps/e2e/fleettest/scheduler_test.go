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

// words of the runtime's thread: less than what it takes, and more than what lies
// before its random state.
const words = 255

type thread [words]uint64

const (
	// wyrand is what each draw adds to the state of the runtime's quick generator.
	wyrand = 0xa0761d6478bd642f
	// chacha is the size, in words, of the slow one, which lies before it: 32 words
	// of output, 4 of seed, and three counters of half a word.
	chacha = 38
)

// scheduler makes what Go's scheduler does a function of a seed, from pin to unpin.
// With one P, goroutines run in the order in which they became ready, but for three
// things:
//
//   - a select with several cases ready, the iteration over a map, and timers of one
//     instant draw lots: from the thread's generators, which are seeded here. What
//     else draws from them is not always the same (what is done once, caches), so
//     they are seeded again at every event.
//   - a goroutine that ran for 10 ms of real time, or whose thread was not given a
//     CPU for so long, is put behind the others: here it keeps running (preemptoff).
//   - a system call that takes its time gives the P to another thread, and the
//     collector runs when it will: fleets make no system calls, and the collector is
//     off meanwhile.
//
// What it writes to has no official name. It is found by what it does, and pin fails
// where it is not found: with another release of Go, look at struct m in runtime2.go.
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
		return nil, errors.New("the runtime's quick generator is not where it is looked for")
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
		return nil, errors.New("the runtime's preemptoff is not where it is looked for")
	}
	*s.preemptoff() = "fleettest"
	s.event(seed)
	return s, nil
}

// preemptoff lies before locks: string preemptoff, int32 locks.
func (s *scheduler) preemptoff() *string { return (*string)(unsafe.Pointer(&s.m[s.locks-2])) }

// event seeds the generators for what happens next. The caller sees to it that no
// two run at once.
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
	slow[36], slow[37] = 0, 0 // everything was drawn: the next draw begins a new block
}

// unpin lets the thread go. It fails if goroutines had run on another one.
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
