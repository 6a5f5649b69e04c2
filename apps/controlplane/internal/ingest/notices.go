package ingest

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// A region may store maxNotices notices at once, and then one every noticeEvery. An app keeps a limited history, and
// notices must not push a day's decisions out of it. Each process of the control plane counts separately.
const (
	maxNotices  = 30
	noticeEvery = time.Minute
	// whoAgent is the author of entries for notices.
	whoAgent = "agent"
	// oldestNotice is the maximum age of a notice's time, by the agent's clock. It is long, so that a notice that
	// waited for the end of an outage keeps its time.
	oldestNotice = 24 * time.Hour
)

// budget is the number of notices of a region that may be stored at a time.
type budget struct {
	left int
	at   int64
}

func (b budget) budgetAt(now int64) budget {
	if b.at == 0 {
		return budget{left: maxNotices, at: now}
	}
	more := max(0, now-b.at) / noticeEvery.Milliseconds()
	if left := int64(b.left) + more; left < maxNotices {
		return budget{left: int(left), at: b.at + more*noticeEvery.Milliseconds()}
	}
	return budget{left: maxNotices, at: now}
}

// noticeEntries returns the history entries of a report's notices, or none if the report was already stored. If the
// region's budget is too small, it returns the newest notices and drops older ones.
func (s *Service) noticeEntries(p *pending, owners map[string]model.Assignment, now int64) (out []model.History, dropped int) {
	if len(p.req.Notices) == 0 || p.req.Sequence <= p.heard {
		return nil, 0
	}
	for _, n := range p.req.Notices {
		if owner, ok := owners[n.DeploymentId]; ok {
			out = append(out, model.History{
				ID: ident.New("hst"), WorkspaceID: owner.WorkspaceID, AppID: owner.AppID, DeploymentID: n.DeploymentId, RegionID: p.region,
				At: noticedAt(n.At, now), What: what(n.Kind), Why: reasonOf(n), Who: whoAgent,
			})
		}
	}
	s.mu.Lock()
	left := s.noticing[p.region].budgetAt(now).left
	s.mu.Unlock()
	dropped = max(0, len(out)-max(0, left))
	return out[dropped:], dropped
}

// putHistory stores the history with the versions of its deployments.
func (w *writes) putHistory(tx Tx) error {
	if len(w.history) == 0 {
		return nil
	}
	versions := map[string]int32{}
	for _, h := range w.history {
		versions[h.DeploymentID] = 0
	}
	deployments, err := tx.GetDeployments(slices.Sorted(maps.Keys(versions)))
	if err != nil {
		return fmt.Errorf("read versions: %w", err)
	}
	for _, d := range deployments {
		versions[d.ID] = d.Version
	}
	for i := range w.history {
		w.history[i].Version = versions[w.history[i].DeploymentID]
	}
	if err := tx.InsertHistory(w.history); err != nil {
		return fmt.Errorf("insert history: %w", err)
	}
	return nil
}

// countStored subtracts the stored notices from the regions' budgets.
func (s *Service) countStored(notices []model.History, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range notices {
		b := s.noticing[h.RegionID].budgetAt(now)
		b.left--
		s.noticing[h.RegionID] = b
	}
}

func noticedAt(at, now int64) int64 {
	if at > now || at < now-oldestNotice.Milliseconds() {
		return now
	}
	return at
}

func what(k agentv1.Notice_Kind) string {
	if k == agentv1.Notice_KIND_DRIFT {
		return "Drift"
	}
	return "Notice"
}

func reasonOf(n *agentv1.Notice) string {
	text := clipText(n.Object, maxName) + ": " + n.Message
	if n.Times > 1 {
		text = fmt.Sprintf("%s (the last of %d times)", clipText(text, maxMessage-40), n.Times)
	}
	return clipText(text, maxMessage)
}
