package access

import "sync"

// Locks has one lock per name. A lock exists while it has users.
type Locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	sync.RWMutex
	users int
}

func (l *Locks) useLock(name string) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		l.held = map[string]*lock{}
	}
	k := l.held[name]
	if k == nil {
		k = &lock{}
		l.held[name] = k
	}
	k.users++
	return k
}

func (l *Locks) leaveLock(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.held[name]; k != nil {
		if k.users--; k.users == 0 {
			delete(l.held, name)
		}
	}
}

// Exclusive locks name exclusively, until the caller calls unlock.
func (l *Locks) Exclusive(name string) (unlock func()) {
	k := l.useLock(name)
	k.Lock()
	return func() {
		k.Unlock()
		l.leaveLock(name)
	}
}

// Shared locks name for any number of callers of Shared, and excludes callers of Exclusive.
func (l *Locks) Shared(name string) (unlock func()) {
	k := l.useLock(name)
	k.RLock()
	return func() {
		k.RUnlock()
		l.leaveLock(name)
	}
}

// Waiting returns how many callers hold name or wait for it, not counting one holder.
func (l *Locks) Waiting(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.held[name]; k != nil {
		return k.users - 1
	}
	return 0
}
