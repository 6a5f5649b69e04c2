package kubernetes

import "sync"

// locks are one lock per name, made for its first user and dropped with its last.
type locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	sync.RWMutex
	users int
}

func (l *locks) use(name string) *lock {
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

func (l *locks) leave(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.held[name]; k != nil {
		if k.users--; k.users == 0 {
			delete(l.held, name)
		}
	}
}

// alone holds name for oneself until the result is called.
func (l *locks) alone(name string) (unlock func()) {
	k := l.use(name)
	k.Lock()
	return func() {
		k.Unlock()
		l.leave(name)
	}
}

// together holds name against those who want to be alone.
func (l *locks) together(name string) (unlock func()) {
	k := l.use(name)
	k.RLock()
	return func() {
		k.RUnlock()
		l.leave(name)
	}
}
