package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/simulated"
	"github.com/windlass-run/windlass/pkg/digest"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// truth is the state that a control plane wants in one region, and the changes that led to it.
type truth struct {
	epoch    int64
	rows     map[string]*agentv1.Item
	changes  []string // keys, by revision from 1
	holder   string   // empty: no deployment should run
	workload string
}

func (w *truth) clone() truth {
	c := *w
	c.rows, c.changes = maps.Clone(w.rows), slices.Clone(w.changes)
	return c
}

func (w *truth) change(id string, state *agentv1.DeploymentState) {
	generation := int64(1)
	if was := w.rows[id]; was != nil {
		generation = was.Generation + 1
	}
	w.rows[id] = &agentv1.Item{
		Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Key: id, Generation: generation, SpecHash: fmt.Append(nil, id, generation),
		Content: &agentv1.Item_Deployment{Deployment: state},
	}
	w.changes = append(w.changes, id)
}

func (w *truth) assign(id, workload, template string, replicas, most int32) {
	w.holder, w.workload = id, workload
	w.change(id, &agentv1.DeploymentState{Action: apply, WorkloadKey: workload, Deployment: &agentv1.Deployment{
		Id: id, Replicas: replicas, MaxUnavailable: most, TemplateHash: []byte(template), Spec: &windlassv1.DeploymentSpec{},
	}})
}

func (w *truth) end(id string, transferred bool) {
	w.change(id, &agentv1.DeploymentState{Action: remove, WorkloadKey: w.workload, HandedOver: transferred, Deployment: &agentv1.Deployment{Id: id}})
}

// items returns the present rows of the keys. Rows of deployments that should run come first.
func (w *truth) items(keys []string) []*agentv1.Item {
	var out []*agentv1.Item
	for _, k := range keys {
		c := w.rows[k]
		out = append(out, &agentv1.Item{Kind: c.Kind, Key: c.Key, Generation: c.Generation, SpecHash: c.SpecHash, Content: c.Content, Epoch: w.epoch})
	}
	slices.SortStableFunc(out, func(a, b *agentv1.Item) int {
		switch x, y := inbox.IsDelete(a), inbox.IsDelete(b); {
		case x == y:
			return 0
		case x:
			return 1
		}
		return -1
	})
	return out
}

// successors is a region that receives the truth in frames.
type successors struct {
	t      *testing.T
	rt     *rapid.T
	spy    *spy
	disk   *inbox.Memory
	in     *inbox.Inbox
	r      *Reconciler
	stop   func()
	truth  truth
	frames []*agentv1.Delta // frames of the stream that the region has not received yet
	// serving is true if all instances were ready once, and a deployment has held the workload ever
	// since.
	serving  bool
	replicas int32
	most     int32
	before   []truth
	log      []string
	settling atomic.Bool // while true, Apply does not fail
}

func (h *successors) start() {
	in, err := inbox.OpenMemory(h.disk)
	require.NoError(h.t, err)
	r, err := New(Config{
		Inbox: in, Runtime: h.spy,
		Secrets:       func(context.Context, *agentv1.Deployment, int64) (map[string]string, error) { return nil, nil },
		ForgetSecrets: func(string) error { return nil },
		Gateways:      served{spy: h.spy},
		Log:           slog.New(slog.DiscardHandler), Tracer: noop.NewTracerProvider().Tracer(""),
		Region: func() string { return "us-east-1" }, Rand: func() float64 { return 0.5 },
	})
	require.NoError(h.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	h.in, h.r, h.frames = in, r, nil
	h.stop = func() {
		cancel()
		require.NoError(h.t, <-done)
		require.NoError(h.t, in.Close())
	}
}

// snapshot sends the present state, of all buckets or of some.
func (h *successors) snapshot(buckets []int32) {
	h.frames = nil
	items := h.truth.items(slices.Sorted(maps.Keys(h.truth.rows)))
	begin := &agentv1.SnapshotBegin{Epoch: h.truth.epoch, Revision: int64(len(h.truth.changes)), Count: int64(len(items)), Buckets: buckets}
	if buckets != nil {
		begin.Revision = h.in.Cursor().Revision
	}
	changed, err := h.in.Snapshot(begin, items)
	require.NoError(h.t, err)
	h.r.Enqueue(changed...)
}

// bookmark does what the session does when it receives a bookmark.
func (h *successors) bookmark() {
	if !h.in.Asked() {
		return
	}
	var all []int32
	for b := range int32(digest.Buckets) {
		all = append(all, b)
	}
	h.snapshot(all)
}

// tell reads the changes up to a revision and cuts them into frames.
func (h *successors) tell(upto int64) {
	after := h.in.Cursor().Revision
	if n := len(h.frames); n > 0 {
		after = h.frames[n-1].Upto
	}
	if upto <= after {
		return
	}
	keys := slices.Sorted(slices.Values(h.truth.changes[after:upto]))
	items := h.truth.items(slices.Compact(keys))
	for len(items) > 0 {
		n := rapid.IntRange(1, len(items)).Draw(h.rt, "in a frame")
		d := &agentv1.Delta{Epoch: h.truth.epoch, After: after, Upto: after, Items: items[:n]}
		if items = items[n:]; len(items) == 0 {
			d.Upto = upto
		}
		h.frames = append(h.frames, d)
	}
}

func (h *successors) receive() {
	if len(h.frames) == 0 {
		return
	}
	changed, err := h.in.Delta(h.frames[0])
	require.NoError(h.t, err)
	h.frames = h.frames[1:]
	h.r.Enqueue(changed...)
}

func (h *successors) ready() int32 {
	n := 0
	for _, ids := range h.spy.Ready() {
		n += len(ids)
	}
	return int32(n)
}

// pass waits for d, and checks all the time that enough replicas are ready.
func (h *successors) pass(d time.Duration) {
	const step = 100 * time.Millisecond
	for range d/step + 1 {
		ready := h.ready()
		switch {
		case h.truth.holder == "":
			h.serving = false
		case h.serving && ready < h.replicas-max(h.most, 1):
			require.FailNow(h.t, "too few replicas are ready", "%d of %d, most %d: %v", ready, h.replicas, h.most, h.spy.Running())
		}
		time.Sleep(step)
	}
}

// settle sends everything, waits, and checks that the region has the wanted state.
func (h *successors) settle() {
	h.settling.Store(true)
	defer h.settling.Store(false)
	for range 2 {
		h.tell(int64(len(h.truth.changes)))
		for len(h.frames) > 0 {
			h.receive()
		}
		h.pass(30 * time.Second)
		h.bookmark()
		h.pass(2 * time.Minute)
		// Workloads that a restored control plane does not know are removed once a person approves
		// it.
		quarantined, _ := h.r.Quarantined()
		for _, q := range quarantined {
			h.truth.change(q.Key, &agentv1.DeploymentState{Action: remove, WorkloadKey: q.Key, Deployment: &agentv1.Deployment{Id: q.Key}})
		}
	}
	want := map[string]int{}
	if h.truth.holder != "" {
		want[h.truth.holder] = int(h.replicas)
	}
	got := h.spy.Running()
	maps.DeleteFunc(got, func(_ string, n int) bool { return n == 0 })
	require.Equal(h.t, want, got)
	for id, item := range h.truth.rows {
		s := (&harness{r: h.r}).state(id)
		require.Equal(h.t, []any{h.truth.epoch, item.Generation, isApplied, inbox.IsDelete(item)}, []any{s.Epoch, s.Generation, s.Phase, s.Deleted}, "%v", s)
	}
	h.serving = h.truth.holder != ""
	require.False(h.t, h.in.Asked())
}

func (h *successors) happen() {
	w := &h.truth
	ids := []string{"dep_1", "dep_2", "dep_3", "dep_4"}
	id := rapid.SampledFrom(ids).Draw(h.rt, "id")
	template := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(h.rt, "template")
	what := rapid.SampledFrom([]string{
		"assign", "assign", "assign", "assign", "newer", "end", "tell", "tell", "tell", "receive", "receive", "receive",
		"break", "restart", "snapshot", "bookmark", "fork", "restore", "pass", "pass", "settle",
	}).Draw(h.rt, "what")
	h.before = append(h.before, w.clone())
	h.log = append(h.log, fmt.Sprintf("%s %s %s at %d: %s has %s, ready %d", what, id, template, len(w.changes), w.holder, w.workload, h.ready()))
	switch {
	case what == "assign" && w.holder == "":
		w.assign(id, id, template, h.replicas, h.most)
	case what == "assign" && id != w.holder:
		from := w.holder
		w.assign(id, w.workload, template, h.replicas, h.most)
		w.end(from, true)
	case what == "newer" && w.holder != "":
		w.assign(w.holder, w.workload, template, h.replicas, h.most)
	case what == "end" && w.holder != "":
		w.end(w.holder, false)
		w.holder, h.serving = "", false
	case what == "tell":
		h.tell(int64(rapid.IntRange(int(h.in.Cursor().Revision), len(w.changes)).Draw(h.rt, "upto")))
	case what == "receive":
		h.receive()
	case what == "break":
		h.frames = nil
	case what == "restart":
		h.stop()
		h.start()
	case what == "snapshot":
		h.snapshot(nil)
	case what == "bookmark":
		h.bookmark()
	case what == "fork":
		w.epoch++
		h.snapshot(nil)
	case what == "restore":
		// Only a past state in which a deployment had the present workload is restored. Otherwise,
		// the restored control plane might not know the present workload, and its instances could
		// stay, as quarantined.
		past := h.before[rapid.IntRange(0, len(h.before)-1).Draw(h.rt, "to")]
		if past.holder == "" || past.workload != w.workload || w.holder == "" {
			return
		}
		for id, item := range past.rows {
			// The deployment had another workload at that time, and its tombstone names the other
			// workload.
			if inbox.IsDelete(item) && item.GetDeployment().WorkloadKey != w.workload && w.rows[id] != item {
				return
			}
		}
		epoch := w.epoch
		*w = past.clone()
		w.epoch = epoch + 1
		h.snapshot(nil)
	case what == "pass":
		h.pass(time.Duration(rapid.IntRange(1, 40).Draw(h.rt, "ds")) * 100 * time.Millisecond)
	case what == "settle":
		h.settle()
	}
}

// Deltas and snapshots may tell the region early or late which deployment has a workload, and its
// agent may fail at any time. While a deployment should have the workload, no more replicas are out
// of service than allowed. In the end, the running deployments are the wanted ones.
func TestTransfer_WorkloadServesThroughoutProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int64
			slow := rapid.SliceOfN(rapid.IntRange(0, 20), 7, 7).Draw(rt, "slow")
			fails := rapid.SliceOfN(rapid.IntRange(0, 5), 5, 5).Draw(rt, "fails")
			second := func() time.Duration { return time.Second }
			var h *successors
			s := &spy{inside: map[string]bool{}, Runtime: simulated.New(simulated.Config{Start: second, Stop: second})}
			s.failWith(func(string) error {
				n := calls.Add(1)
				time.Sleep(time.Duration(slow[n%7]) * 100 * time.Millisecond)
				if fails[n%5] == 0 && !h.settling.Load() {
					return &runtime.Rejection{Code: runtime.ReasonConflict, Message: "not now", Retryable: true}
				}
				return nil
			})
			h = &successors{
				t: t, rt: rt, spy: s, disk: inbox.NewMemory(), truth: truth{epoch: 1, rows: map[string]*agentv1.Item{}},
				replicas: int32(rapid.IntRange(1, 4).Draw(rt, "replicas")), most: int32(rapid.IntRange(0, 2).Draw(rt, "most")),
			}
			h.start()
			defer func() {
				h.stop()
				if t.Failed() {
					seen, _ := s.Observe(context.Background())
					t.Logf("%+v", seen.Deployments)
					t.Log(h.r.Applied())
					t.Log(h.in.Items())
					t.Log(strings.Join(h.log, "\n"))
				}
			}()
			h.snapshot(nil)
			h.truth.assign("dep_1", "dep_1", "a", h.replicas, h.most)
			h.settle()
			for range rapid.IntRange(1, 60).Draw(rt, "steps") {
				h.happen()
			}
			h.settle()
		})
	})
}
