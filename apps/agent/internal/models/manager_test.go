package models

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/pkg/modelstate"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// harness is a manager with servers and gateways in memory and virtual time.
type harness struct {
	t       *testing.T
	manager *Manager
	stop    func()

	mu      sync.Mutex
	servers map[string]*fakeServer
	// added counts the calls of addIfMissing.
	added int
	// loadTime is the time of a load. loads and unloads count the loads and unloads of all servers.
	loadTime time.Duration
	loads    int
	unloads  int
	// fail has the errors of loads. unready has the models that say they are not ready. Both are by
	// model or model@server.
	fail    map[string]error
	unready map[string]bool
	// crash has the models that end every server that loads them.
	crash map[string]bool
	// heldFails returns the error of Held. Nil: no error.
	heldFails func() error
	// checks is how many models one call of Held checks. 0 means all.
	checks int
	// silent is a model for which servers never say whether it is ready. questions counts the calls
	// of Held.
	silent    string
	questions int
	// loading is a model that servers say they are loading.
	loading string
	// registerer is the Config's Registerer. Default: nil.
	registerer prometheus.Registerer
	// claim and claimed are Config.Claim and Config.Claimed. Default: nil.
	claim   func(server, name, model string) error
	claimed func(server, name string) string
	// prepare is Config.Prepare. discarded counts the calls of Discard.
	prepare   func(ctx context.Context, s Server, m Model) (Model, error)
	discarded int
	// holds is the result of Config.Holds, and busy has the deployments for which Config.Busy is true.
	holds bool
	busy  map[string]bool

	// view has the routes of the gateway. ackDelay is how long the gateway takes to get new routes.
	view     map[string][]string
	ackDelay time.Duration
	// breaches has the requests that went to a server without the model.
	breaches []string
}

type fakeServer struct {
	Server
	has map[string]bool
}

func newHarness(t *testing.T) *harness {
	h := &harness{
		t: t, servers: map[string]*fakeServer{}, fail: map[string]error{}, unready: map[string]bool{}, crash: map[string]bool{},
		loadTime: 100 * time.Millisecond, ackDelay: 20 * time.Millisecond, view: map[string][]string{},
	}
	h.start()
	return h
}

// start starts an agent, which knows nothing of the previous agent.
func (h *harness) start() {
	m, err := New(Config{Loader: h, Released: h.released, Claim: h.claim, Claimed: h.claimed, Prepare: h.prepare, Discard: h.discard, Holds: h.mayHold, Busy: h.isBusy, Registerer: h.registerer, Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 2)).Float64})
	require.NoError(h.t, err)
	ctx, cancel := context.WithCancel(h.t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = m.Run(ctx) })
	running.Go(func() { h.look(ctx, m) })
	h.manager = m
	h.stop = func() {
		cancel()
		running.Wait()
	}
}

func (h *harness) mayHold() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holds
}

func (h *harness) isBusy(deployment string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.busy[deployment]
}

func (h *harness) discard(Server, Model) { h.update(func() { h.discarded++ }) }

// restartAgent starts another agent with the present fields of the harness.
func (h *harness) restartAgent() {
	h.stop()
	h.start()
}

// look shows the gateway the agent's observations, as the reconciler does.
func (h *harness) look(ctx context.Context, m *Manager) {
	for ctx.Err() == nil {
		view := map[string][]string{}
		for _, s := range m.Status() {
			for _, r := range s.Replicas {
				if r.State.Facts().Routed {
					view[s.ModelID] = append(view[s.ModelID], r.ServerID)
				}
			}
		}
		h.mu.Lock()
		delay := h.ackDelay
		h.mu.Unlock()
		time.Sleep(delay)
		h.mu.Lock()
		h.view = view
		h.mu.Unlock()
		m.Again()
		select {
		case <-m.Changed():
		case <-ctx.Done():
		}
	}
}

func (h *harness) released(modelID, serverID string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !slices.Contains(h.view[modelID], serverID)
}

// set sets the models of the region. Models that are not among the arguments are dropped.
func (h *harness) set(models ...Model) {
	wanted := map[string]bool{}
	for _, m := range models {
		wanted[m.ID] = true
		h.manager.Put(m)
	}
	for _, s := range h.manager.Status() {
		if !wanted[s.ModelID] {
			h.manager.Drop(s.ModelID)
		}
	}
}

func (h *harness) add(id, app string, memory int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.servers[id] = &fakeServer{Server: Server{ID: id, Incarnation: "1", App: app, Index: len(h.servers), Address: id, Ready: true, Memory: memory}, has: map[string]bool{}}
}

// update changes fields of the harness under its lock.
func (h *harness) update(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

// change changes a server, and tells the manager about it.
func (h *harness) change(id string, change func(s *fakeServer)) {
	h.mu.Lock()
	if s := h.servers[id]; s != nil {
		change(s)
	}
	h.mu.Unlock()
	h.show()
}

// addIfMissing adds a server with a new incarnation if the id has no server. It reports whether it
// did so.
func (h *harness) addIfMissing(id string, memory int64) bool {
	h.mu.Lock()
	exists := h.servers[id] != nil
	h.added++
	incarnation := fmt.Sprint("added ", h.added)
	h.mu.Unlock()
	if !exists {
		h.add(id, "shared", memory)
		h.change(id, func(s *fakeServer) { s.Incarnation = incarnation })
	}
	return !exists
}

// kill ends a server for good.
func (h *harness) kill(id string) {
	h.mu.Lock()
	delete(h.servers, id)
	h.mu.Unlock()
	h.show()
}

// restart ends a server's process and starts another one.
func (h *harness) restart(id string) {
	h.change(id, func(s *fakeServer) { s.Incarnation += "1"; s.has = map[string]bool{} })
}

func (h *harness) show() {
	h.mu.Lock()
	var all []Server
	for _, s := range h.servers {
		all = append(all, s.Server)
	}
	h.mu.Unlock()
	h.manager.SetServers(all)
}

func (h *harness) settle() { h.pass(10 * time.Second) }

// pass waits for d.
func (h *harness) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (h *harness) status(id string) Status {
	for _, s := range h.manager.Status() {
		if s.ModelID == id {
			return *s
		}
	}
	require.FailNow(h.t, "no such model", id)
	return Status{}
}

// where returns the servers that have a model.
func (h *harness) where(name string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var ids []string
	for id, s := range h.servers {
		if s.has[name] {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// routed returns the servers to which gateways send requests for a model.
func (h *harness) routed(id string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.view[id]
}

// request sends a request as a gateway does: to a routed server, and to the next one if the first
// does not have the model.
func (h *harness) request(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, server := range h.view[id] {
		if s := h.servers[server]; s != nil && s.has[id] {
			return true
		}
		h.breaches = append(h.breaches, id+"@"+server)
	}
	return false
}

func (h *harness) Held(_ context.Context, s Server, first []string) ([]Held, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fake := h.servers[s.ID]
	if fake == nil || fake.Incarnation != s.Incarnation {
		return nil, errors.New("connection refused")
	}
	if h.heldFails != nil {
		return nil, h.heldFails()
	}
	var held []Held
	h.questions++
	checked := 0
	for _, name := range append(first, slices.Collect(maps.Keys(fake.has))...) {
		if !fake.has[name] || slices.ContainsFunc(held, func(other Held) bool { return other.Name == name }) {
			continue
		}
		one := Held{Name: name}
		if name == h.loading {
			one.Checked, one.Loading = true, true
		} else if name != h.silent && (h.checks == 0 || checked < h.checks) {
			checked++
			one.Checked, one.Ready = true, !h.unready[name] && !h.unready[name+"@"+s.ID]
		}
		held = append(held, one)
	}
	return held, nil
}

func (h *harness) Load(ctx context.Context, s Server, m Model) error {
	h.mu.Lock()
	h.loads++
	takes := h.loadTime
	h.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	h.mu.Lock()
	fake := h.servers[s.ID]
	crash := h.crash[m.Name]
	defer h.mu.Unlock()
	switch {
	case fake == nil || fake.Incarnation != s.Incarnation:
		return errors.New("connection refused")
	case crash:
		go h.restart(s.ID)
		return errors.New("connection reset")
	case h.fail[m.Name] != nil:
		return h.fail[m.Name]
	case h.fail[m.Name+"@"+s.ID] != nil:
		return h.fail[m.Name+"@"+s.ID]
	}
	if h.unready[m.Name] {
		fake.has[m.Name] = true
		return errors.New("it is loaded, and says that it is not ready")
	}
	var used int64
	for name := range fake.has {
		used += memoryOf(name)
	}
	if used+m.Memory > fake.Memory {
		h.t.Errorf("%s has no room for %s", s.ID, m.Name)
	}
	fake.has[m.Name] = true
	return nil
}

// memoryOf returns the memory that a test's model needs: the number at the end of its name, or 1.
func memoryOf(name string) int64 {
	_, digits, _ := strings.Cut(name, "-")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 1
	}
	return n
}

func (h *harness) Unload(_ context.Context, s Server, m Model) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unloads++
	if slices.Contains(h.view[m.ID], s.ID) {
		h.t.Errorf("%s is unloaded from %s while gateways route to it", m.ID, s.ID)
	}
	if fake := h.servers[s.ID]; fake != nil {
		delete(fake.has, m.Name)
	}
	return nil
}

func (h *harness) countLoads() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.loads
}

func (h *harness) countUnloads() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unloads
}

func model(id string, replicas int) Model {
	return Model{ID: id, Name: id, Memory: memoryOf(id), Replicas: replicas, MinReplicas: min(replicas, 1)}
}

func run(t *testing.T, name string, test func(h *harness)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t)
			defer func() {
				h.stop()
				synctest.Wait()
			}()
			test(h)
		})
	})
}

func TestManager(t *testing.T) {
	run(t, "loads, spreads and unloads without a failed request", func(h *harness) {
		for _, id := range []string{"s1", "s2", "s3"} {
			h.add(id, "shared", 10)
		}
		h.show()
		h.set(model("a", 1))
		h.settle()
		require.Equal(h.t, modelstate.ModelAvailable, h.status("a").State)
		require.Len(h.t, h.where("a"), 1)

		ended := make(chan struct{})
		requests, failed := 0, 0
		go func() {
			defer close(ended)
			for range 6000 {
				requests++
				if !h.request("a") {
					failed++
				}
				time.Sleep(5 * time.Millisecond)
			}
		}()
		h.set(model("a", 3))
		h.settle()
		require.Len(h.t, h.where("a"), 3)
		h.set(model("a", 1))
		h.settle()
		require.Len(h.t, h.where("a"), 1)
		h.set(model("a", 2))
		h.settle()
		<-ended
		require.Zero(h.t, failed, "of %d", requests)
		require.Empty(h.t, h.breaches)
		require.Equal(h.t, h.where("a"), h.routed("a"))

		gone := model("a", 2)
		gone.Deleted = true
		h.set(gone)
		h.settle()
		require.Equal(h.t, modelstate.ModelTerminated, h.status("a").State)
		require.Empty(h.t, h.where("a"))
	})

	run(t, "more replicas than servers are partial, until more servers come", func(h *harness) {
		h.add("s1", "shared", 10)
		h.show()
		h.set(model("a", 2))
		h.settle()
		s := h.status("a")
		require.Equal(h.t, modelstate.ModelAvailable, s.State)
		require.True(h.t, s.Partial)
		require.Equal(h.t, "1 server has a replica already", s.Reason)
		h.add("s2", "shared", 10)
		h.show()
		h.settle()
		s = h.status("a")
		require.False(h.t, s.Partial)
		require.Empty(h.t, s.Reason)
		require.Equal(h.t, []string{"s1", "s2"}, h.routed("a"))
	})

	run(t, "says why no server can hold a model", func(h *harness) {
		h.add("s1", "shared", 3)
		h.add("s2", "shared", 5)
		h.show()
		onnx := model("b", 1)
		onnx.Requires = []string{"onnx"}
		h.set(model("a-9", 1), onnx)
		h.settle()
		require.Equal(h.t, modelstate.ModelScheduleFailed, h.status("a-9").State)
		require.Equal(h.t, "2 servers lack 4 bytes and 6 bytes of the 9 bytes needed", h.status("a-9").Reason)
		require.Equal(h.t, "2 servers lack capability onnx", h.status("b").Reason)
	})

	run(t, "moves the models within a second when a server ends", func(h *harness) {
		for i := range 4 {
			h.add(fmt.Sprint("s", i), "shared", 100)
		}
		h.loadTime = time.Millisecond
		h.show()
		var models []Model
		for i := range 50 {
			models = append(models, model(fmt.Sprint("m", i), 1))
		}
		h.set(models...)
		h.settle()
		h.kill("s2")
		h.pass(time.Second)
		for _, m := range models {
			require.Equal(h.t, modelstate.ModelAvailable, h.status(m.ID).State)
			require.Equal(h.t, h.where(m.ID), h.routed(m.ID))
		}
	})

	run(t, "brings models back when their server restarts, before their traffic", func(h *harness) {
		h.add("s1", "shared", 10)
		h.show()
		h.set(model("a", 1), model("b", 1))
		h.settle()
		h.loadTime = 5 * time.Second
		h.restart("s1")
		h.pass(time.Second)
		require.Empty(h.t, h.routed("a"))
		h.settle()
		require.Equal(h.t, []string{"s1"}, h.routed("a"))
		require.Equal(h.t, []string{"s1"}, h.routed("b"))
	})

	run(t, "adopts loaded models after a restart of the agent", func(h *harness) {
		h.add("s1", "shared", 10)
		h.add("s2", "shared", 10)
		h.show()
		models := []Model{model("a", 2), model("b", 1)}
		h.set(models...)
		h.settle()
		before, where := h.countLoads(), h.where("b")
		h.stop()
		h.start()
		h.set(models...)
		h.show()
		h.settle()
		require.Equal(h.t, before, h.countLoads(), "nothing is loaded again")
		require.Equal(h.t, where, h.where("b"))
		require.Equal(h.t, where, h.routed("b"))
		require.Equal(h.t, []string{"s1", "s2"}, h.routed("a"))
	})

	run(t, "leaves models alone that it does not know", func(h *harness) {
		h.add("s1", "shared", 10)
		h.servers["s1"].has["other"] = true
		h.show()
		h.set(model("a", 1))
		h.settle()
		require.Equal(h.t, []string{"s1"}, h.where("other"))
		h.set()
		h.settle()
		require.Equal(h.t, []string{"s1"}, h.where("a"), "a model that the agent does not know is not deleted")
	})

	run(t, "drains a server without a gap", func(h *harness) {
		h.add("s1", "shared", 10)
		h.show()
		h.set(model("a", 1))
		h.settle()
		h.change("s1", func(s *fakeServer) { s.Draining = true })
		h.settle()
		require.Equal(h.t, []string{"s1"}, h.routed("a"), "there is no other server")
		require.Equal(h.t, modelstate.ModelAvailable, h.status("a").State)
		h.loadTime = 3 * time.Second
		h.add("s2", "shared", 10)
		h.show()
		for range 2000 {
			require.True(h.t, h.request("a"))
			time.Sleep(5 * time.Millisecond)
		}
		synctest.Wait()
		require.Equal(h.t, []string{"s2"}, h.where("a"))
		require.Equal(h.t, []string{"s2"}, h.routed("a"))
	})

	run(t, "retries a load that fails, on another server first", func(h *harness) {
		h.add("s1", "shared", 10)
		h.add("s2", "shared", 10)
		h.fail["a@s1"] = errors.New("digest differs")
		h.show()
		h.set(model("a", 1))
		h.settle()
		require.Equal(h.t, []string{"s2"}, h.routed("a"))

		h.update(func() { h.fail["b"] = errors.New("the artifact does not exist: 404") })
		h.set(model("a", 1), model("b", 1))
		h.settle()
		s := h.status("b")
		require.Contains(h.t, s.Reason, "the artifact does not exist: 404")
		require.Contains(h.t, s.Reason, "failed to load the model")
		loads := h.countLoads()
		time.Sleep(10 * time.Minute)
		require.Less(h.t, h.countLoads()-loads, 60, "there are delays between attempts")
		h.update(func() { delete(h.fail, "b") })
		h.pass(2 * time.Minute)
		require.Equal(h.t, modelstate.ModelAvailable, h.status("b").State)
	})

	run(t, "removes a model that is not ready from the routes, and loads it again", func(h *harness) {
		h.add("s1", "shared", 10)
		h.show()
		h.set(model("a", 1))
		h.settle()
		h.update(func() { h.unready["a"] = true })
		h.settle()
		require.Empty(h.t, h.routed("a"))
		require.Equal(h.t, modelstate.ModelProgressing, h.status("a").State)
		require.Contains(h.t, h.status("a").Reason, "not ready")
		loads := h.countLoads()
		time.Sleep(time.Minute)
		h.update(func() { h.unready["a"] = false })
		h.pass(time.Minute)
		require.Greater(h.t, h.countLoads(), loads)
		require.Equal(h.t, []string{"s1"}, h.routed("a"))
	})

	run(t, "quarantines a model that ends servers, and loads their other models again", func(h *harness) {
		h.add("s1", "shared", 10)
		h.add("t1", "other", 1)
		h.update(func() { h.crash["bad"] = true })
		h.show()
		models := []Model{model("a", 1), model("b", 1), model("bad", 1), model("c-5", 1)}
		h.set(models...)
		h.pass(time.Minute)
		for _, id := range []string{"a", "b", "c-5"} {
			require.Equal(h.t, modelstate.ModelAvailable, h.status(id).State, id)
		}
		require.NotEqual(h.t, modelstate.ModelAvailable, h.status("bad").State)
		require.Contains(h.t, h.status("bad").Reason, "the model has killed")
		loads := h.countLoads()
		time.Sleep(10 * time.Minute)
		require.Equal(h.t, loads, h.countLoads(), "the model is not loaded again")
	})

	run(t, "retries a load that failed while other models change all the time", func(h *harness) {
		h.add("s1", "shared", 10)
		h.fail["a"] = errors.New("404")
		h.show()
		h.set(model("a", 1))
		h.pass(500 * time.Millisecond)
		m := h.manager
		m.mu.Lock()
		defer m.mu.Unlock()
		failed := m.replicas[replicaKey{"a", "s1"}]
		require.Equal(h.t, modelstate.LoadFailed, failed.State)
		now := failed.retryAt
		m.placeDirty, m.placeAt, m.placedAt = true, now.Add(time.Second), failed.since.Add(-1)
		m.startDue(h.t.Context(), now)
		require.Equal(h.t, modelstate.LoadFailed, m.replicas[replicaKey{"a", "s1"}].State, "no placement has been made since the failure")
		m.placedAt = failed.since
		m.startDue(h.t.Context(), now)
		require.Equal(h.t, modelstate.Unloaded, m.replicas[replicaKey{"a", "s1"}].State)
	})

	run(t, "does not blame a model for the end of a server that drains", func(h *harness) {
		h.add("s1", "shared", 10)
		h.loadTime = time.Hour
		h.show()
		h.set(model("a", 1))
		time.Sleep(time.Second)
		h.change("s1", func(s *fakeServer) { s.Draining = true })
		h.kill("s1")
		require.Empty(h.t, h.manager.kills)
	})

	run(t, "does not blame a model for the end of a server that did not take the connection", func(h *harness) {
		h.add("s1", "shared", 10)
		h.show()
		h.settle()
		h.update(func() { h.fail["a"] = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED} })
		h.set(model("a", 1))
		h.pass(500 * time.Millisecond)
		require.Equal(h.t, modelstate.ModelFailed, h.status("a").State)
		h.restart("s1")
		require.Empty(h.t, h.manager.kills)
		h.update(func() { delete(h.fail, "a") })
		h.settle()
		require.Equal(h.t, []string{"s1"}, h.routed("a"))
	})
	run(t, "does not blame a model whose files are being fetched, or could not be fetched", func(h *harness) {
		h.prepare = func(ctx context.Context, _ Server, m Model) (Model, error) {
			if m.ID == "slow" {
				<-ctx.Done()
			}
			return m, errors.New("artifact from models.test: it answered 404 Not Found")
		}
		h.restartAgent()
		h.add("s1", "shared", 10)
		h.show()
		slow, missing := model("slow", 1), model("missing", 1)
		slow.Artifact.URL, missing.Artifact.URL = "https://models.test/slow", "https://models.test/missing"
		h.set(slow, missing, model("a", 1))
		h.pass(500 * time.Millisecond)
		require.Equal(h.t, []string{"s1"}, h.routed("a"))
		require.Equal(h.t, "1 server failed to load the model: artifact from models.test: it answered 404 Not Found", h.status("missing").Reason)
		require.Equal(h.t, 1, h.countLoads(), "the server was asked for no model without files")
		h.restart("s1")
		require.Empty(h.t, h.manager.kills)
	})

	run(t, "loads what was prepared, and discards it after the unload", func(h *harness) {
		h.prepare = func(_ context.Context, s Server, m Model) (Model, error) {
			m.Path = "/files/" + s.ID
			return m, nil
		}
		h.restartAgent()
		h.add("s1", "shared", 10)
		h.show()
		a := model("a", 1)
		a.Artifact.URL = "https://models.test/a"
		h.set(a)
		h.settle()
		require.Equal(h.t, []string{"s1"}, h.routed("a"))
		require.Zero(h.t, h.discarded)
		a.Deleted = true
		h.set(a)
		h.settle()
		require.Empty(h.t, h.where("a"))
		require.Equal(h.t, 1, h.discarded)
	})

	run(t, "blames a model for ends of servers for a limited time", func(h *harness) {
		h.add("s1", "shared", 10)
		h.update(func() { h.crash["bad"] = true })
		h.show()
		h.set(model("bad", 1))
		time.Sleep(time.Minute)
		loads := h.countLoads()
		h.pass(time.Hour)
		require.Equal(h.t, loads+1, h.countLoads(), "there is exactly one more attempt")
		require.Contains(h.t, h.status("bad").Reason, "the model has killed")
		h.update(func() { delete(h.crash, "bad") })
		h.pass(time.Hour)
		require.Equal(h.t, []string{"s1"}, h.routed("bad"))
		require.Len(h.t, h.manager.kills, 1)
		h.pass(time.Hour)
		require.Empty(h.t, h.manager.kills)
	})

	run(t, "does not blame a new version of a model that ended servers", func(h *harness) {
		h.add("s1", "shared", 10)
		h.update(func() { h.crash["bad"] = true })
		h.show()
		old, next := model("bad", 1), model("good", 1)
		next.Name = "bad"
		h.set(old)
		time.Sleep(time.Minute)
		h.update(func() { delete(h.crash, "bad") })
		h.set(next)
		h.settle()
		require.Equal(h.t, []string{"s1"}, h.routed("good"))
		require.Empty(h.t, h.manager.kills)
	})

	run(t, "unloads a deleted model whose load failed although the server has it", func(h *harness) {
		h.add("s1", "shared", 10)
		h.unready["a"] = true // Load leaves the model on the server, and fails.
		h.show()
		a := model("a", 1)
		h.set(a)
		h.pass(300 * time.Millisecond)
		require.Equal(h.t, modelstate.ModelFailed, h.status("a").State)
		a.Deleted = true
		h.manager.Put(a)
		require.False(h.t, h.manager.IsGone("a"))
		h.pass(30 * time.Second)
		require.Empty(h.t, h.where("a"))
		require.True(h.t, h.manager.IsGone("a"))
	})

	run(t, "unloads a model that is deleted while it loads, after the load", func(h *harness) {
		h.add("s1", "shared", 10)
		h.loadTime = 20 * time.Second
		h.show()
		a := model("a", 1)
		h.set(a)
		h.pass(time.Second)
		a.Deleted = true
		h.manager.Put(a)
		h.pass(15 * time.Second)
		require.Zero(h.t, h.countUnloads(), "no unload while the load runs")
		require.Equal(h.t, modelstate.ModelTerminating, h.status("a").State)
		h.pass(10 * time.Second)
		require.Empty(h.t, h.where("a"))
		require.Equal(h.t, 1, h.countUnloads())
		require.Equal(h.t, modelstate.ModelTerminated, h.status("a").State)
	})

	run(t, "loads a model only once if it is unwanted for a moment during the load", func(h *harness) {
		h.add("s1", "shared", 10)
		h.loadTime = 2 * time.Minute
		h.show()
		h.set(model("a", 1))
		h.pass(time.Second)
		h.set(model("a", 0))
		h.pass(time.Second)
		h.set(model("a", 1))
		h.pass(3 * time.Minute)
		require.Equal(h.t, []string{"s1"}, h.routed("a"))
		require.Equal(h.t, 1, h.countLoads())
		require.Zero(h.t, h.countUnloads())
	})

	run(t, "asks a server which models it holds before it loads any", func(h *harness) {
		h.add("s1", "shared", 10)
		h.servers["s1"].Ready = false
		h.show()
		h.set(model("a", 1))
		h.settle()
		require.Zero(h.t, h.countLoads())
		require.Equal(h.t, "there is no server for models", h.status("a").Reason)
		h.change("s1", func(s *fakeServer) { s.Ready = true })
		h.settle()
		require.Equal(h.t, []string{"s1"}, h.routed("a"))
	})
}

func TestManager_AdoptsOnlyModelsOfItsScope(t *testing.T) {
	run(t, "the model of a server of another scope is not adopted", func(h *harness) {
		h.add("s1", "shared", 10)
		h.servers["s1"].Scope = "env_1"
		h.servers["s1"].has["a"] = true
		h.show()
		other := model("a", 1)
		other.Scope = "env_2"
		h.set(other)
		h.settle()
		require.Empty(h.t, h.routed("a"))
		require.Empty(h.t, h.status("a").Replicas)
		h.set(model("b", 1), other)
		h.settle()
		require.Equal(h.t, []string{"s1"}, h.where("a"))
	})
	run(t, "the model of a server of another app is not adopted", func(h *harness) {
		h.add("s1", "shared", 10)
		h.servers["s1"].has["a"] = true
		h.show()
		other := model("a", 1)
		other.App = "base"
		h.set(other)
		h.settle()
		require.Empty(h.t, h.routed("a"))
		require.Equal(h.t, []string{"s1"}, h.where("a"))
	})
	run(t, "a model that was not checked is not ready", func(h *harness) {
		h.add("s1", "shared", 100)
		var models []Model
		for i := range 20 {
			models = append(models, model(fmt.Sprint("m", i), 1))
			h.servers["s1"].has[models[i].Name] = true
		}
		h.checks = 3
		h.unready["m7"] = true
		h.update(func() { h.ackDelay = time.Microsecond })
		h.set(models...)
		h.show()
		h.pass(time.Millisecond)
		ready := func() (n int) {
			for _, s := range h.manager.Status() {
				require.Len(h.t, s.Replicas, 1)
				if s.Replicas[0].State.Facts().Routed {
					n++
				}
			}
			return n
		}
		require.LessOrEqual(h.t, ready(), 3)
		h.pass(time.Second)
		require.Equal(h.t, 19, ready(), "the other models are checked at once")
		require.Empty(h.t, h.routed("m7"))
		require.Zero(h.t, h.countLoads())
		require.Zero(h.t, h.countUnloads())
	})
	run(t, "a server that says nothing about a model is not asked without pauses", func(h *harness) {
		h.add("s1", "shared", 100)
		h.servers["s1"].has["a"] = true
		h.servers["s1"].has["b"] = true
		h.silent = "b"
		h.set(model("a", 1), model("b", 1))
		h.show()
		h.pass(time.Minute)
		require.Equal(h.t, []string{"s1"}, h.routed("a"))
		require.Empty(h.t, h.routed("b"))
		h.mu.Lock()
		defer h.mu.Unlock()
		require.Less(h.t, h.questions, 30)
	})
	run(t, "a replica of unknown state is not loaded again, and can be deleted later", func(h *harness) {
		h.add("s1", "shared", 10)
		h.servers["s1"].has["a"] = true
		h.silent = "a"
		a := model("a", 1)
		h.set(a)
		h.show()
		h.settle()
		require.False(h.t, h.manager.Reload("a", "s1"))
		h.update(func() { h.silent = "" })
		h.settle()
		require.Equal(h.t, []string{"s1"}, h.routed("a"))
		a.Deleted = true
		h.set(a)
		h.settle()
		require.Empty(h.t, h.where("a"))
	})
	for what, change := range map[string]func(m *Model){
		"deleted":        func(m *Model) { m.Deleted = true },
		"scaled to zero": func(m *Model) { m.Replicas, m.MinReplicas = 0, 0 },
	} {
		run(t, "a model about which a server says nothing is unloaded when it is "+what, func(h *harness) {
			h.add("s1", "shared", 10)
			h.servers["s1"].has["a"] = true
			h.silent = "a"
			a := model("a", 1)
			h.set(a)
			h.show()
			h.settle()
			require.Equal(h.t, []string{"s1"}, h.where("a"))
			change(&a)
			h.set(a)
			h.settle()
			require.Empty(h.t, h.where("a"))
			require.Empty(h.t, h.status("a").Replicas)
		})
	}
	run(t, "a load that an earlier agent began may finish", func(h *harness) {
		h.add("s1", "shared", 10)
		h.servers["s1"].has["a"] = true
		h.loading = "a"
		h.set(model("a", 1))
		h.show()
		h.pass(5 * time.Minute)
		require.Empty(h.t, h.routed("a"))
		require.Zero(h.t, h.countUnloads())
		h.update(func() { h.loading = "" })
		h.settle()
		require.Equal(h.t, []string{"s1"}, h.routed("a"))
		require.Zero(h.t, h.countLoads())
		require.Zero(h.t, h.countUnloads())
	})
	run(t, "a load that an earlier agent began has LoadTimeout to finish", func(h *harness) {
		h.add("s1", "shared", 10)
		h.servers["s1"].has["a"] = true
		h.loading = "a"
		h.set(model("a", 1))
		h.show()
		h.pass(29 * time.Minute)
		require.Zero(h.t, h.countUnloads())
		h.pass(2 * time.Minute)
		require.NotZero(h.t, h.countUnloads())
	})
	run(t, "a new version is loaded on a server without the old version", func(h *harness) {
		h.add("s1", "shared", 10)
		h.show()
		old, next := model("a", 1), model("b", 1)
		next.Name, next.Order = "a", 1
		h.set(old)
		h.settle()
		loads := h.countLoads()
		h.set(old, next)
		h.settle()
		require.Empty(h.t, h.routed("b"))
		require.Equal(h.t, "1 server has another version of the model", h.status("b").Reason)
		require.Equal(h.t, []string{"s1"}, h.routed("a"))
		old.Deleted = true
		h.set(old, next)
		h.settle()
		require.Equal(h.t, []string{"s1"}, h.routed("b"))
		require.Equal(h.t, loads+1, h.countLoads())
	})
	run(t, "an old version does not unload the version that replaced it", func(h *harness) {
		h.add("s1", "shared", 10)
		h.show()
		old, next := model("a", 1), model("b", 1)
		next.Name, next.Order = "a", 1
		h.set(old)
		h.settle()
		old.Replicas = 0
		h.set(old, next)
		h.settle()
		require.Equal(h.t, []string{"s1"}, h.routed("b"))
		unloads := h.countUnloads()
		h.settle()
		require.Equal(h.t, []string{"s1"}, h.routed("b"))
		require.Equal(h.t, unloads, h.countUnloads())
	})
	run(t, "knows after a restart of the agent which version a server has", func(h *harness) {
		claims := map[string]string{}
		h.claim = func(server, name, model string) error {
			claims[server+"/"+name] = model
			return nil
		}
		h.claimed = func(server, name string) string { return claims[server+"/"+name] }
		h.stop()
		h.start()
		h.add("s1", "shared", 10)
		h.show()
		old, next := model("a", 1), model("b", 1)
		next.Name, next.Order = "a", 1
		h.set(old)
		h.settle()
		require.Empty(h.t, claims, "only one version has the name")
		h.set(next, old)
		h.add("s2", "shared", 10)
		h.show()
		h.settle()
		require.Equal(h.t, map[string]string{"s2/a": "b"}, claims)
		loads := h.countLoads()
		h.stop()
		h.start()
		h.set(next, old)
		h.show()
		h.settle()
		require.Equal(h.t, []string{"s1"}, h.routed("a"))
		require.Equal(h.t, []string{"s2"}, h.routed("b"))
		require.Equal(h.t, loads, h.countLoads())
	})
}

func TestManager_ConvergesAfterRandomFaults(t *testing.T) {
	const memory = 15 // of a server; three replicas of each model fill four of the five servers
	for seed := range uint64(10) {
		run(t, fmt.Sprint("seed ", seed), func(h *harness) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			sourceFails := false // guarded by h.mu
			h.prepare = func(ctx context.Context, _ Server, m Model) (Model, error) {
				select {
				case <-time.After(200 * time.Millisecond):
				case <-ctx.Done():
					return m, ctx.Err()
				}
				h.mu.Lock()
				defer h.mu.Unlock()
				if sourceFails {
					return m, errors.New("artifact from models.test: the source sent nothing for 1m0s")
				}
				return m, nil
			}
			h.restartAgent()
			fetched := func(id string, replicas int) Model { // every second model is fetched
				m := model(id, replicas)
				if strings.ContainsAny(id[len(id)-1:], "02468") {
					m.Artifact.URL = "https://models.test/" + id
				}
				return m
			}
			var models []Model
			for i := range 20 {
				models = append(models, fetched(fmt.Sprint("m", i), 1+rnd.IntN(3)))
			}
			for i := range 5 {
				h.add(fmt.Sprint("s", i), "shared", memory)
			}
			h.show()
			h.set(models...)
			for range 100 {
				id := fmt.Sprint("s", rnd.IntN(5))
				switch rnd.IntN(8) {
				case 0:
					h.kill(id)
				case 1:
					h.addIfMissing(id, memory)
				case 2:
					h.restart(id)
				case 3:
					h.change(id, func(s *fakeServer) { s.Draining = !s.Draining })
				case 4:
					i := rnd.IntN(len(models))
					models[i] = fetched(models[i].ID, rnd.IntN(4))
					h.set(models...)
				case 5:
					h.stop()
					h.start()
					h.set(models...)
					h.show()
				case 6:
					h.change(id, func(s *fakeServer) { s.Ready = !s.Ready })
				case 7:
					h.update(func() { sourceFails = !sourceFails })
				}
				time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
				h.update(func() {
					for id, s := range h.servers {
						require.LessOrEqual(h.t, len(s.has), memory, id) // each model takes 1
					}
				})
			}
			h.update(func() { sourceFails = false })
			for i := range 5 {
				id := fmt.Sprint("s", i)
				if !h.addIfMissing(id, memory) {
					h.change(id, func(s *fakeServer) { s.Ready, s.Draining = true, false })
				}
			}
			h.pass(3 * time.Minute)
			for _, m := range models {
				require.Len(h.t, h.where(m.ID), m.Replicas, m.ID)
				require.Equal(h.t, h.where(m.ID), append([]string(nil), h.routed(m.ID)...), m.ID)
			}
			loads := h.countLoads()
			time.Sleep(10 * time.Minute)
			require.Equal(h.t, loads, h.countLoads(), "no model is loaded again without a cause")
		})
	}
}

func TestManager_StatusIsComputedOnlyForChangedModels(t *testing.T) {
	run(t, "a model and its servers", func(h *harness) {
		h.add("s1", "shared", 10)
		h.add("s2", "shared", 10)
		h.show()
		h.set(model("a", 1), model("b", 1), model("c-99", 1))
		h.settle()
		was := h.manager.Status()
		require.Equal(h.t, []string{"a", "b", "c-99"}, []string{was[0].ModelID, was[1].ModelID, was[2].ModelID})
		same := func(i int) bool { return was[i] == h.manager.Status()[i] }
		require.True(h.t, same(0) && same(1) && same(2))
		h.set(model("a", 2), model("b", 1), model("c-99", 1))
		h.settle()
		require.Equal(h.t, 2, h.status("a").Available)
		require.True(h.t, !same(0) && same(1))
		was = h.manager.Status()
		at := h.where("b")[0]
		h.change(at, func(s *fakeServer) { s.Ready = false })
		require.False(h.t, h.status("b").Replicas[0].ServerReady)
		h.change(at, func(s *fakeServer) { s.Ready = true })
		h.settle()
		h.add("s3", "shared", 1000)
		h.show()
		h.settle()
		require.Equal(h.t, []string{"s3"}, h.routed("c-99"))
		h.set(model("b", 1), model("c-99", 1))
		require.Len(h.t, h.manager.Status(), 2)
	})
}

func TestManager_ServesAgreesWithStates(t *testing.T) {
	run(t, "while servers come, drain and go", func(h *harness) {
		rnd := rand.New(rand.NewPCG(3, 4))
		served := 0
		check := func() {
			m := h.manager
			m.mu.Lock()
			defer m.mu.Unlock()
			serving := map[string]int{}
			for key, r := range m.replicas {
				require.Same(h.t, r, m.replicasOf[key.model][key.server])
				require.Same(h.t, r, m.servers[key.server].replicas[key.model])
				if r.State.Facts().Routed || r.State == modelstate.UnrouteRequested {
					serving[key.server]++
					served++
				}
			}
			for id, s := range m.servers {
				require.Equal(h.t, serving[id], s.serving, id)
			}
		}
		for range 300 {
			id := fmt.Sprint("s", rnd.IntN(4))
			switch rnd.IntN(4) {
			case 0:
				h.kill(id)
			case 1:
				h.addIfMissing(id, 10)
			case 2:
				h.change(id, func(s *fakeServer) { s.Draining = !s.Draining })
			case 3:
				h.set(model("a", rnd.IntN(3)), model("b", rnd.IntN(3)), model(fmt.Sprint("c", rnd.IntN(2)), 1))
			}
			time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
			check()
		}
		require.NotZero(h.t, served)
	})
}

// BenchmarkRuntime_Observe measures Observe with 5,000 models while one of them changes.
func BenchmarkRuntime_Observe(b *testing.B) {
	const all = 5000
	base, loader := &fakeBase{changes: make(chan struct{}, 1)}, &fakeLoader{held: map[string]map[string]bool{}}
	m, err := Wrap(base, loader, nil, disk.NewMemory(), "models.json", slog.New(slog.DiscardHandler), nil, rand.Float64)
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = m.Run(ctx) })
	defer running.Wait()
	defer cancel()
	require.NoError(b, m.keepServer("dep_servers", assignment{AppName: "shared", Server: &windlassv1.ModelServer{}}))
	base.serve(instanceOf("ins_a", ready))
	for i := range all {
		id := fmt.Sprint("dep_", i)
		one := assignment{DeploymentID: id, AppName: id, Replicas: 1, Model: &windlassv1.LoadedModel{}}
		m.kept.Models[id] = one
		m.manager.Put(one.asModel(id))
	}
	for available := 0; available < all; {
		available = 0
		seen, err := m.Observe(ctx)
		require.NoError(b, err)
		for _, d := range seen.Deployments[1:] {
			if len(d.Instances) > 0 && d.Instances[0].Status == ready {
				available++
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	for b.Loop() {
		m.manager.mu.Lock()
		m.manager.stale["dep_7"] = true
		m.manager.mu.Unlock()
		if _, err := m.Observe(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func TestManager_SilentServers(t *testing.T) {
	fails := func(text string) func() error { return func() error { return errors.New(text) } }
	run(t, "a model without a server says that a server does not answer", func(h *harness) {
		h.update(func() { h.heldFails = fails("500 Internal Server Error: cannot read the repository") })
		h.add("s1", "shared", 10)
		h.set(model("a", 1))
		h.show()
		h.settle()
		h.settle()
		require.Equal(h.t, "1 server does not say which models it has: 500 Internal Server Error: cannot read the repository", h.manager.Status()[0].Refused)
		h.update(func() { h.heldFails = nil })
		time.Sleep(time.Minute)
		h.settle()
		require.Empty(h.t, h.manager.Status()[0].Refused)
		require.Len(h.t, h.manager.Status()[0].Replicas, 1)
	})
	run(t, "a text that differs with each question causes no new placement", func(h *harness) {
		asked := 0
		h.update(func() {
			h.heldFails = func() error {
				asked++
				return fmt.Errorf("500 Internal Server Error: request %d", asked)
			}
		})
		h.add("s1", "shared", 10)
		h.set(model("a", 1))
		h.show()
		h.settle()
		first := h.manager.Status()[0].Refused
		time.Sleep(10 * time.Minute)
		h.update(func() { require.Greater(h.t, asked, 5) })
		require.Contains(h.t, first, "request ")
		require.Equal(h.t, first, h.manager.Status()[0].Refused)
	})
	run(t, "the text has no addresses of the host", func(h *harness) {
		h.update(func() {
			h.heldFails = func() error {
				return fmt.Errorf("list models: %w", &net.OpError{Op: "read", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 5)}, Err: syscall.ECONNRESET})
			}
		})
		h.add("s1", "shared", 10)
		h.set(model("a", 1))
		h.show()
		h.settle()
		h.settle()
		require.Equal(h.t, "1 server does not say which models it has: connection reset by peer", h.manager.Status()[0].Refused)
	})
	run(t, "a server that never answers may stop a minute after the agent's start", func(h *harness) {
		h.update(func() { h.heldFails = fails("refused") })
		h.add("s1", "shared", 10)
		h.show()
		h.settle()
		require.False(h.t, h.manager.IsEmpty("s1"), "an earlier agent may have loaded models there")
		time.Sleep(time.Minute)
		require.True(h.t, h.manager.IsEmpty("s1"))
	})
}

// many is how many models TestManager_Thousands loads.
var many = flag.Int("many", 1000, "number of models of TestManager_Thousands")

// TestManager_Thousands loads models onto servers that answer immediately, in real time. Its log has the times.
func TestManager_Thousands(t *testing.T) {
	const servers = 20
	models := *many
	h := newHarness(t)
	defer func() { h.stop() }()
	h.update(func() { h.loadTime, h.ackDelay = 0, time.Millisecond })
	for i := range servers {
		h.add(fmt.Sprint("s", i), "shared", int64(2*models/servers))
	}
	h.show()
	var all []Model
	for i := range models {
		all = append(all, model(fmt.Sprint("m", i), 1))
	}
	available := func() int {
		n := 0
		for _, s := range h.manager.Status() {
			if s.State == modelstate.ModelAvailable {
				n++
			}
		}
		return n
	}
	await := func(what string, limit time.Duration) {
		began := time.Now()
		for available() < models {
			require.Less(t, time.Since(began), limit, what)
			time.Sleep(50 * time.Millisecond)
		}
		t.Logf("%s: %v", what, time.Since(began))
	}
	h.set(all...)
	await("available", time.Minute)
	h.kill("s3")
	await("available elsewhere", time.Minute)
	for _, m := range all {
		h.manager.Put(m)
	}
	h.update(func() { h.questions = 0 })
	began, used := time.Now(), processorTime(t)
	time.Sleep(time.Second)
	t.Logf("idle: %v of processor time in %v", processorTime(t)-used, time.Since(began))
	for i := range all {
		all[i].Replicas, all[i].MinReplicas = 0, 0
	}
	h.set(all...)
	gone := time.Now()
	for {
		held := 0
		h.update(func() {
			for _, s := range h.servers {
				held += len(s.has)
			}
		})
		if held == 0 {
			break
		}
		require.Less(t, time.Since(gone), time.Minute, "unloaded")
		time.Sleep(50 * time.Millisecond)
	}
	t.Logf("unloaded: %v", time.Since(gone))
	for i := range all {
		all[i].Replicas, all[i].MinReplicas = 1, 1
	}
	h.set(all...)
	await("available again", time.Minute)
}

// processorTime returns the time that this process has used.
func processorTime(t *testing.T) time.Duration {
	var used syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
