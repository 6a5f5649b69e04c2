package rollout

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/windlass-run/windlass/pkg/backoff"
)

// maxSteps is how many steps run at once in one process: enough to keep a database busy, and few enough not
// to queue in it.
const maxSteps = 32

// Memory is a Driver that runs goroutines of this process. Its wake-ups are lost with the process, and the
// Sweeper then sends them again. Inside a synctest bubble it runs on virtual time.
type Memory struct {
	step Step
	log  *slog.Logger
	slot chan struct{}

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	apps   map[string]*memoryApp
}

// memoryApp exists while its app runs or waits for a retry.
type memoryApp struct {
	running, again bool
	failures       int
	timer          *time.Timer
	// nonce identifies the live timer, because another may fire while it is replaced.
	nonce int
}

// NewMemory returns a driver that is ready at once. Call Close or Run to stop it.
func NewMemory(step Step, log *slog.Logger) *Memory {
	ctx, cancel := context.WithCancel(context.Background())
	return &Memory{
		step: step, log: log, slot: make(chan struct{}, maxSteps),
		ctx: ctx, cancel: cancel, apps: map[string]*memoryApp{},
	}
}

// Run closes the driver when ctx ends.
func (m *Memory) Run(ctx context.Context) error {
	<-ctx.Done()
	m.Close()
	return nil
}

// Close stops timers, cancels running steps and waits for them.
func (m *Memory) Close() {
	m.mu.Lock()
	m.closed = true
	for _, a := range m.apps {
		a.stop()
	}
	m.mu.Unlock()
	m.cancel()
	m.wg.Wait()
}

// Wake implements Driver.
func (m *Memory) Wake(_ context.Context, appIDs []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range appIDs {
		m.kickApp(id)
	}
	return nil
}

// kickApp runs a step of the app now, or after the running one. The caller holds mu.
func (m *Memory) kickApp(id string) {
	if m.closed {
		return
	}
	a := m.apps[id]
	if a == nil {
		a = &memoryApp{}
		m.apps[id] = a
	}
	a.stop()
	if a.running {
		a.again = true
		return
	}
	a.running = true
	m.wg.Go(func() { m.run(id, a) })
}

func (a *memoryApp) stop() {
	a.nonce++
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
}

func (m *Memory) run(id string, a *memoryApp) {
	for {
		m.slot <- struct{}{}
		err := m.step(m.ctx, id)
		<-m.slot
		if err != nil && m.ctx.Err() == nil {
			m.log.Warn("step failed, will be tried again", "app", id, "failures", a.failures+1, "error", err)
		}
		if m.settleStep(id, a, err) {
			return
		}
	}
}

// settleStep schedules the next try of a failed step. It returns false if a step must run at once.
func (m *Memory) settleStep(id string, a *memoryApp, err error) (done bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return true
	}
	if a.again {
		a.again = false
		return false
	}
	a.running = false
	if err == nil {
		delete(m.apps, id)
		return true
	}
	nonce := a.nonce
	a.timer = time.AfterFunc(backoff.Policy{}.Delay(a.failures, nil), func() { m.fireTimer(id, a, nonce) })
	a.failures++
	return true
}

func (m *Memory) fireTimer(id string, a *memoryApp, nonce int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.nonce == nonce {
		m.kickApp(id)
	}
}
