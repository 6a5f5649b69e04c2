package restate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/localstack/restate"
)

// counter has a step that counts its runs, and that may be held.
type counter struct {
	mu    sync.Mutex
	steps map[string]int
	hold  chan struct{}
	held  chan struct{}
}

func newCounter() *counter { return &counter{steps: map[string]int{}} }

func (c *counter) step(ctx context.Context, id string) error {
	c.mu.Lock()
	c.steps[id]++
	hold, held := c.hold, c.held
	c.hold = nil
	c.mu.Unlock()
	if hold != nil {
		close(held)
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// holdNext makes the next step wait until the test ends.
func (c *counter) holdNext() (held chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold, c.held = make(chan struct{}), make(chan struct{})
	return c.held
}

func (c *counter) count(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.steps[id]
}

// latest reports whether new invocations go to the driver's address, and how many addresses
// Restate knows for the service.
func (h *harness) latest(d *Driver) (leads bool, known int) {
	all, err := d.admin.listDeployments(context.Background())
	require.NoError(h.t, err)
	latest, err := d.admin.latestDeployment(context.Background(), h.service)
	require.NoError(h.t, err)
	for _, dep := range all {
		if dep.servesService(h.service) {
			known++
			leads = leads || (dep.ID == latest && sameAddress(dep.URI, d.Endpoint()))
		}
	}
	return leads, known
}

// leads reports whether Restate knows no address but the driver's.
func (h *harness) leads(d *Driver) bool {
	leads, known := h.latest(d)
	return leads && known == 1
}

// leave starts a step on a process with the version, and kills the process during the step.
func (h *harness) leave(c *counter, version, app string) process {
	p := h.startVersion(c.step, version)
	await(h.t, "it leads", func() bool { leads, _ := h.latest(p.Driver); return leads })
	held := c.holdNext()
	require.NoError(h.t, p.Wake(context.Background(), []string{app}))
	<-held
	p.crash()
	return p
}

func TestInvocation_OfADeadAddressGoesOnAtOurs(t *testing.T) {
	r, c, app := newHarness(t), newCounter(), ident.New("app")
	r.leave(c, handlersVersion, app)
	before := c.count(app)
	p := r.start(c.step)
	await(t, "the step that was cut off is run again, by itself", func() bool { return c.count(app) > before })
	await(t, "only our address is left", func() bool { return r.leads(p.Driver) })
}

// In this test, the handlers' version has changed, and no process serves the old one any more.
func TestInvocation_OfLostCodeHoldsNoKey(t *testing.T) {
	r, c, app := newHarness(t), newCounter(), ident.New("app")
	r.leave(c, "v0", app)
	before := c.count(app)
	p := r.start(c.step)
	await(t, "the old version is forgotten", func() bool { return r.leads(p.Driver) })
	require.NoError(t, p.Wake(context.Background(), []string{app}))
	await(t, "the app's key is free", func() bool { return c.count(app) > before })
}

func TestRegistration_OlderVersionThatComesBackLeads(t *testing.T) {
	r, c, app := newHarness(t), newCounter(), ident.New("app")
	old := r.start(c.step)
	await(t, "the old version leads", func() bool { return r.leads(old.Driver) })
	r.leave(c, "v9", app)
	before := c.count(app)
	await(t, "the newer version, which is dead, is forgotten", func() bool { return r.leads(old.Driver) })
	await(t, "new invocations come to the old one", func() bool {
		_ = old.Wake(context.Background(), []string{app}) // fails until the service is registered again
		return c.count(app) > before
	})
}

func TestRegistration_ReplacesOnlyDeadProcesses(t *testing.T) {
	r, c, app := newHarness(t), newCounter(), ident.New("app")
	first := r.start(c.step)
	await(t, "the first is registered", func() bool { return r.leads(first.Driver) })
	second := r.start(c.step)
	for range 2 * deadAfter {
		settled, err := second.reconcileOnce(context.Background(), map[string]int{})
		require.NoError(t, err)
		require.True(t, settled)
	}
	require.True(t, r.leads(first.Driver))
	require.NoError(t, second.Wake(context.Background(), []string{app}))
	await(t, "the step is run", func() bool { return c.count(app) == 1 })
	first.crash()
	await(t, "the second takes over", func() bool { return r.leads(second.Driver) })
	require.NoError(t, second.Wake(context.Background(), []string{app}))
	await(t, "the step is run", func() bool { return c.count(app) == 2 })
}

// This test has a Restate of its own.
func TestRegistration_IsRepeatedAfterRestateLostItsData(t *testing.T) {
	dir := t.TempDir()
	cfg := restate.Config{Dir: filepath.Join(dir, "restate"), Relaxed: true, DieWithParent: true}
	server, err := restate.Start(t.Context(), cfg)
	require.NoError(t, err)
	r := &harness{t: t, ingress: server.IngressURL(), admin: server.AdminURL(), service: "WindlassApp"}
	c, app := newCounter(), ident.New("app")
	p := r.start(c.step)
	await(t, "it is registered", func() bool { return r.leads(p.Driver) })
	require.EqualValues(t, 1, p.lost.Load(), "Restate may have lost its data before this process started")

	stop(t, server)
	require.NoError(t, os.RemoveAll(cfg.Dir))
	require.Error(t, p.Wake(context.Background(), []string{app}))
	cfg.IngressPort, cfg.AdminPort = portOf(t, r.ingress), portOf(t, r.admin)
	server, err = restate.Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { stop(t, server) })

	await(t, "it is registered again", func() bool { return p.Check(context.Background()) == nil })
	require.EqualValues(t, 2, p.lost.Load())
	require.NoError(t, p.Wake(context.Background(), []string{app}))
	await(t, "the step is run", func() bool { return c.count(app) == 1 })
}

func stop(t *testing.T, s *restate.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	require.NoError(t, s.Stop(ctx))
}

// TestOutage_PausesNoApp checks that Restate has stored the retry policy of the registration.
func TestOutage_PausesNoApp(t *testing.T) {
	r := newHarness(t)
	p := r.start(func(context.Context, string) error { return nil })
	await(t, "it is registered", func() bool { return r.leads(p.Driver) })
	var service struct {
		RetryPolicy struct {
			MaxAttempts   int64  `json:"max_attempts"`
			MaxInterval   string `json:"max_interval"`
			OnMaxAttempts string `json:"on_max_attempts"`
		} `json:"retry_policy"`
	}
	require.NoError(t, p.admin.call(context.Background(), "GET", "/services/"+r.service, nil, &service))
	require.Greater(t, service.RetryPolicy.MaxAttempts, int64(1_000_000_000))
	require.Equal(t, "Kill", service.RetryPolicy.OnMaxAttempts)
	require.Equal(t, "4s", service.RetryPolicy.MaxInterval)
}

// The retries come before the times that Restate has planned.
func TestInvocation_FailedIsRetriedOnceAStepPasses(t *testing.T) {
	r := newHarness(t)
	var away atomic.Bool
	away.Store(true)
	steps := newCounter()
	p := r.start(func(ctx context.Context, id string) error {
		if away.Load() {
			return errors.New("the database is away")
		}
		return steps.step(ctx, id)
	})
	await(t, "it is registered", func() bool { return r.leads(p.Driver) })
	waiting := []string{ident.New("app"), ident.New("app")}
	require.NoError(t, p.Wake(context.Background(), waiting))
	var due time.Time
	await(t, "all wait for seconds", func() bool {
		var list struct {
			Rows []struct {
				At time.Time `json:"next_retry_at"`
			} `json:"rows"`
		}
		query := "SELECT next_retry_at FROM sys_invocation WHERE status = 'backing-off' AND target_service_name = '" + r.service + "'"
		require.NoError(t, p.admin.call(context.Background(), "POST", "/query", map[string]any{"query": query}, &list))
		due = time.Now().Add(time.Hour)
		for _, row := range list.Rows {
			if row.At.Before(due) {
				due = row.At
			}
		}
		return len(list.Rows) == len(waiting) && time.Until(due) > 2500*time.Millisecond
	})
	away.Store(false)
	require.NoError(t, p.Wake(context.Background(), []string{ident.New("app")}))
	await(t, "all are tried", func() bool {
		for _, id := range waiting {
			if steps.count(id) == 0 {
				return false
			}
		}
		return true
	})
	require.True(t, time.Now().Before(due), "the invocations were retried only when they were due")
}

func TestConfig_NamesWhatIsWrong(t *testing.T) {
	good := Config{
		Step: func(context.Context, string) error { return nil }, Lost: func(context.Context) error { return nil },
		Ingress: []string{"http://127.0.0.1:8080"}, Admin: []string{"http://127.0.0.1:9070"}, Listen: "127.0.0.1:0", Log: testLog(t),
	}
	for _, c := range []struct {
		change func(*Config)
		says   string
	}{
		{func(c *Config) { c.Step = nil }, "Step, Lost and Log are required"},
		{func(c *Config) { c.Lost = nil }, "Step, Lost and Log are required"},
		{func(c *Config) { c.Ingress = []string{"8080"} }, "ingress"},
		{func(c *Config) { c.Admin = nil }, "admin"},
		{func(c *Config) { c.Admin = []string{"http://a:9070", "http://a:9070/"} }, "http://a:9070 is listed twice"},
		{func(c *Config) { c.Listen = "nowhere:x" }, "listen"},
		{func(c *Config) { c.Listen = ":0" }, "set the address to advertise"},
		{func(c *Config) { c.Advertise = "controlplane" }, "advertised address"},
	} {
		cfg := good
		c.change(&cfg)
		_, err := New(cfg)
		require.ErrorContains(t, err, c.says)
	}
	cfg := good
	cfg.Listen, cfg.Advertise = ":0", "http://controlplane:9080/base/"
	d, err := New(cfg)
	require.NoError(t, err)
	require.Equal(t, "http://controlplane:9080/base/workflow/v2", d.Endpoint())
	require.NoError(t, d.listener.Close())
}

var _ rollout.Driver = (*Driver)(nil)
