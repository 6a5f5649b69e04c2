// Package failover chooses one of several addresses of a service, such as the nodes of a database.
//
//	check of each address, every second ─┐
//	                                     ├─> chooseAddress ─> the address in use
//	calls that fail: MarkDown ───────────┘
//
// One address is in use at a time, and the first one is preferred. So all processes with the same list use the same
// server: two writers on different nodes of a cluster would conflict. If no address is up, the set keeps the one in use,
// because a failed check may be wrong, and a call that fails tells its caller more than no call.
package failover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// checkEvery bounds how long a dead server stays in use together with failuresUntilDown and checkTimeout.
	checkEvery = time.Second
	// checkTimeout is above the time that a busy server needs for a check.
	checkTimeout = 2 * time.Second
)

// Config configures a Set.
type Config struct {
	// Service is the name in metrics and logs.
	Service string
	// Addresses are the addresses, in the order of preference. They must contain no secrets, because metrics and logs
	// show them.
	Addresses []string
	// Check returns an error unless the address with the index can be used.
	Check func(ctx context.Context, i int) error
	// MayReturn reports whether the address with the index may be used again while a later one is in use and up. It
	// must not block. nil: always.
	MayReturn func(i int) bool
	// Switched is called after another address was chosen. down means that the previous address cannot be used. It
	// must not block, and may be nil.
	Switched func(from, to int, down bool)
	// Metrics and Log may be nil.
	Metrics *Metrics
	Log     *slog.Logger
}

// Set is a list of addresses, of which one is in use. It is safe for concurrent use.
type Set struct {
	cfg Config

	mu      sync.Mutex
	health  []health
	current int
}

// New returns a set that uses the first address. Run checks the addresses.
func New(cfg Config) (*Set, error) {
	if len(cfg.Addresses) == 0 || cfg.Check == nil {
		return nil, errors.New("failover: Addresses and Check are required")
	}
	for i, address := range cfg.Addresses {
		if address == "" {
			return nil, fmt.Errorf("address %d of %d is empty", i+1, len(cfg.Addresses))
		}
		if slices.Contains(cfg.Addresses[:i], address) {
			return nil, fmt.Errorf("%s is listed twice", address)
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.MayReturn == nil {
		cfg.MayReturn = func(int) bool { return true }
	}
	s := &Set{cfg: cfg, health: make([]health, len(cfg.Addresses))}
	if cfg.Metrics != nil {
		cfg.Metrics.add(s)
	}
	return s, nil
}

// Close removes the set from its metrics.
func (s *Set) Close() {
	if s.cfg.Metrics != nil {
		s.cfg.Metrics.remove(s)
	}
}

// CurrentIndex returns the index of the address in use.
func (s *Set) CurrentIndex() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// MarkDown records that a call of the address failed so that it cannot be used, for example because no server listens
// there. With another address that is up, calls use that one from now on.
func (s *Set) MarkDown(i int, err error) {
	s.update(func(all []health) { all[i].markDown(err) }, time.Now())
}

// CheckAll checks all addresses once, at the same time. A program that starts calls it, so that its first call uses an
// address that is up. It does nothing for one address.
func (s *Set) CheckAll(ctx context.Context) {
	if len(s.health) == 1 {
		return
	}
	var wg sync.WaitGroup
	errs := make([]error, len(s.health))
	for i := range s.health {
		wg.Go(func() { errs[i] = s.checkAddress(ctx, i) })
	}
	wg.Wait()
	s.update(func(all []health) {
		for i, err := range errs {
			if err == nil {
				all[i].observe(nil, time.Now())
			} else {
				all[i].markDown(err)
			}
		}
	}, time.Now())
}

// Run checks the addresses until ctx ends. It checks nothing for one address, because there is no choice.
func (s *Set) Run(ctx context.Context) error {
	if len(s.health) == 1 {
		<-ctx.Done()
		return nil
	}
	var wg sync.WaitGroup
	for i := range s.health {
		wg.Go(func() {
			tick := time.NewTicker(checkEvery)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				err := s.checkAddress(ctx, i)
				if ctx.Err() != nil {
					return
				}
				s.update(func(all []health) { all[i].observe(err, time.Now()) }, time.Now())
			}
		})
	}
	wg.Wait()
	return nil
}

func (s *Set) checkAddress(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return s.cfg.Check(ctx, i)
}

// update changes what is known, and chooses the address again.
func (s *Set) update(change func([]health), now time.Time) {
	s.mu.Lock()
	change(s.health)
	from := s.current
	to, reason := chooseAddress(s.health, from, s.cfg.MayReturn, now)
	s.current = to
	cause := s.health[from].err
	s.mu.Unlock()
	if reason == "" {
		return
	}
	if s.cfg.Metrics != nil {
		s.cfg.Metrics.countSwitch(s.cfg.Service, reason)
	}
	s.cfg.Log.Warn("another address is used", "service", s.cfg.Service, "was", s.cfg.Addresses[from], "now", s.cfg.Addresses[to], "reason", reason, "error", cause)
	if s.cfg.Switched != nil {
		s.cfg.Switched(from, to, reason == reasonDown)
	}
}

// unusable is an error after which another address may succeed.
type unusable struct{ error }

func (u unusable) Unwrap() error { return u.error }

// TryNext marks err so that TryEach goes on with another address.
func TryNext(err error) error { return unusable{err} }

// TryEach calls use with the address in use. If use returns an error of TryNext, the address counts as down, and use is
// called with the address that is chosen then. Each address is tried at most once.
func (s *Set) TryEach(ctx context.Context, use func(i int) error) error {
	tried := make([]bool, len(s.health))
	var errs []error
	for {
		i := s.CurrentIndex()
		if tried[i] {
			break
		}
		tried[i] = true
		err := use(i)
		next, ok := errors.AsType[unusable](err)
		if !ok {
			return err
		}
		// The caller's own deadline says nothing about the server.
		if errs = append(errs, next.error); ctx.Err() != nil {
			break
		}
		s.MarkDown(i, next.error)
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// Status is the state of one address.
type Status struct {
	Address string
	// InUse means that calls go to this address.
	InUse bool
	// Up means that the last checks succeeded. It is false before the first check.
	Up bool
	// Error is the last failed check or call. It is nil after a check that succeeded.
	Error error
}

// ListStatus returns the state of all addresses, in the order of preference.
func (s *Set) ListStatus() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Status, len(s.health))
	for i := range s.health {
		all[i] = Status{Address: s.cfg.Addresses[i], InUse: i == s.current, Up: s.health[i].isUp(), Error: s.health[i].err}
	}
	return all
}
