package report

import (
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// newNotices returns the notices in now that are newer than those in before.
func newNotices(before, now []runtime.Notice) []runtime.Notice {
	if len(before) == 0 {
		return now
	}
	newest := before[len(before)-1].Seq
	for len(now) > 0 && now[0].Seq <= newest {
		now = now[1:]
	}
	return now
}

// noticesOf converts the newest notices, at most runtime.MaxNotices.
func noticesOf(notices []runtime.Notice) []*agentv1.Notice {
	notices = notices[max(0, len(notices)-runtime.MaxNotices):]
	out := make([]*agentv1.Notice, len(notices))
	for i, n := range notices {
		out[i] = &agentv1.Notice{
			Kind: n.Kind, DeploymentId: n.DeploymentID, Object: boundText(n.Object), Message: boundText(n.Message),
			Times: int32(n.Times), At: n.At.UnixMilli(),
		}
	}
	return out
}
