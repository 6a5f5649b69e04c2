package logrelay

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// agent answers with the lines of instances after the positions. The field per is the maximum number of lines of one
// instance.
type agent struct {
	mu    sync.Mutex
	lines map[string][]string
	per   int
	away  bool
	asks  int
}

func (a *agent) Ask(_ context.Context, _ string, req *agentv1.Request) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asks++
	if a.away {
		return nil, fmt.Errorf("ask: %w", model.ErrAgentUnreachable)
	}
	res := &agentv1.FollowResponse{}
	for _, in := range req.GetFollow().GetInstances() {
		all, ok := a.lines[in.InstanceId]
		if !ok {
			res.Logs = append(res.Logs, &agentv1.InstanceLog{InstanceId: in.InstanceId, Gone: true})
			continue
		}
		from := max(int(in.GetAfter().GetOffset()), len(all)-a.per)
		end := int64(len(all))
		log := &agentv1.InstanceLog{
			InstanceId: in.InstanceId, Next: &windlassv1.LogPosition{Offset: end, Line: end}, Lost: int64(from) - in.GetAfter().GetOffset(),
		}
		for i := from; i < len(all); i++ {
			log.Lines = append(log.Lines, &windlassv1.LogLine{Text: all[i], Offset: int64(i + 1)})
		}
		res.Logs = append(res.Logs, log)
	}
	return proto.Marshal(res)
}

func (a *agent) write(instance string, lines ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lines[instance] = append(a.lines[instance], lines...)
}

// asked returns the number of requests.
func (a *agent) asked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asks
}

func newRelay(t *testing.T, a *agent) *Relay {
	t.Helper()
	r, err := New(a, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.NoError(t, err)
	return r
}

func join(t *testing.T, r *Relay, instance string, offset int64) *Tap {
	t.Helper()
	tap, err := r.Join("reg_1", instance, &windlassv1.LogPosition{Offset: offset})
	require.NoError(t, err)
	return tap
}

func texts(n News) string {
	var out []string
	for _, l := range n.Lines {
		out = append(out, l.Text)
	}
	return strings.Join(out, " ")
}

func TestRelay_ReadersShareOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{lines: map[string][]string{"ins_1": {"a", "b"}, "ins_2": {"x"}}, per: 1000}
		r := newRelay(t, a)
		first, other := join(t, r, "ins_1", 0), join(t, r, "ins_2", 0)
		time.Sleep(10 * time.Second)
		require.LessOrEqual(t, a.asked(), 21, "the pace does not depend on the number of followed instances")
		late := join(t, r, "ins_1", 1)
		a.write("ins_1", "c")
		time.Sleep(2 * time.Second)
		require.Equal(t, "a b c", texts(first.Next()))
		require.Equal(t, "b c", texts(late.Next()), "no line is shown twice")
		require.Equal(t, "x", texts(other.Next()))
		require.Empty(t, first.Next().Lines)
		for _, tap := range []*Tap{first, late, other} {
			tap.Leave()
			tap.Leave()
		}
		require.Zero(t, r.count())
		asks := a.asked()
		time.Sleep(time.Minute)
		require.LessOrEqual(t, a.asked(), asks+1, "without readers there are no requests")
	})
}

func TestRelay_SlowReaderGetsTheNumberOfLostLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{lines: map[string][]string{"ins_1": nil}, per: 1000}
		r := newRelay(t, a)
		slow, quick := join(t, r, "ins_1", 0), join(t, r, "ins_1", 0)
		defer slow.Leave()
		defer quick.Leave()
		const batches, lines = 40, 500
		got := 0
		for range batches {
			batch := make([]string, lines)
			for i := range batch {
				batch[i] = strings.Repeat("x", 100)
			}
			a.write("ins_1", batch...)
			time.Sleep(2 * time.Second)
			n := quick.Next()
			got += len(n.Lines)
			require.Zero(t, n.Lost)
		}
		require.Equal(t, batches*lines, got)
		n := slow.Next()
		require.EqualValues(t, batches*lines, n.Lost+int64(len(n.Lines)))
		require.Positive(t, n.Lost)
		r.mu.Lock()
		require.LessOrEqual(t, slow.feed.bytes, feedBytes, "memory is bounded")
		r.mu.Unlock()

		// If an instance writes more than its agent sends, the agent counts the lost lines.
		a.write("ins_1", make([]string, 50_000)...)
		time.Sleep(2 * time.Second)
		n = quick.Next()
		require.EqualValues(t, 50_000, n.Lost+int64(len(n.Lines)))
	})
}

func TestRelay_RetriesAnUnreachableRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{lines: map[string][]string{"ins_1": {"a"}}, per: 1000, away: true}
		r := newRelay(t, a)
		tap := join(t, r, "ins_1", 0)
		defer tap.Leave()
		gone := join(t, r, "ins_2", 0)
		defer gone.Leave()
		time.Sleep(time.Minute)
		require.ErrorIs(t, tap.Err(), model.ErrAgentUnreachable)
		require.Less(t, a.asked(), 60)
		a.mu.Lock()
		a.away = false
		a.mu.Unlock()
		time.Sleep(10 * time.Second)
		require.NoError(t, tap.Err())
		require.Equal(t, "a", texts(tap.Next()))
		require.True(t, gone.Next().Gone)
	})
}
