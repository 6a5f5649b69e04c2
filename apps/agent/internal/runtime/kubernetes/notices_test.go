package kubernetes

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

func TestEvents_OfOneObjectAreSummedUp(t *testing.T) {
	var n notices
	start := time.Now()
	at := start.Add
	service := subject{agentv1.Notice_KIND_DRIFT, "dep_1", "Service shop/chat"}
	policy := subject{agentv1.Notice_KIND_DRIFT, "dep_1", "NetworkPolicy shop/chat"}
	said := 0
	next := func() (out []string) {
		for _, x := range n.newestNotices() {
			if x.Seq > int64(said) {
				said++
				require.EqualValues(t, said, x.Seq)
				require.Equal(t, "dep_1", x.DeploymentID)
				out = append(out, fmt.Sprintf("%s: %s, %d", x.Object, x.Message, x.Times))
			}
		}
		return out
	}
	n.add(service, "a", at(0))
	n.add(policy, "b", at(time.Second))
	require.Equal(t, []string{"Service shop/chat: a, 1", "NetworkPolicy shop/chat: b, 1"}, next(), "at once")
	// Another client undoes every repair, one each minute for two days.
	told := 0
	for m := 1; m <= 48*60; m++ {
		n.add(service, "a", at(time.Duration(m)*time.Minute))
		if n.sumUp(at(time.Duration(m) * time.Minute)) {
			told++
		}
		switch m {
		case 10:
			require.Equal(t, []string{"Service shop/chat: a, 10"}, next(), "after ten minutes")
		case 29:
			require.Empty(t, next())
		case 30:
			require.Equal(t, []string{"Service shop/chat: a, 20"}, next(), "after twenty more minutes")
		}
	}
	require.Equal(t, 12, told)
	require.Len(t, n.sums, 1, "a subject without new events is forgotten")
	require.False(t, n.sumUp(at(60*time.Hour)) && n.sumUp(at(80*time.Hour)), "the last events are reported once")
	n.sumUp(at(120 * time.Hour))
	require.Empty(t, n.sums)

	for i := range 3 * runtime.MaxNotices {
		n.add(subject{agentv1.Notice_KIND_DRIFT, "dep_1", fmt.Sprint(i)}, "gone", at(121*time.Hour))
	}
	require.Len(t, n.newestNotices(), runtime.MaxNotices)
	require.Equal(t, fmt.Sprint(3*runtime.MaxNotices-1), n.newestNotices()[runtime.MaxNotices-1].Object, "the newest")
}
