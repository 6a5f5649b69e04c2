package plan

import (
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/plural"
)

// A region has a relapse if it serves its new version, at a step or alone, and then stops serving it because replicas
// of the version are not ready. Each relapse has its own progress deadline, which ends a long relapse. A limit on the
// number of relapses ends the rollout of a version that comes and goes. Without the limit, such a version would restart
// its step's pause or its wave's bake for ever.
//
// A change of the region's assignment, a lost connection and a pause are not relapses.
//
// A region may also lose the acknowledgement of its route while it serves, because gateways or the agent restart. That
// is not a relapse, and the bake continues. If the bake restarted, frequent restarts of gateways would keep it from
// ending. The bake ends once the route is acknowledged again, and the progress deadline limits how long that may take.

// ReasonUnstable means that a region became ready and lost its readiness too often.
const ReasonUnstable = "Unstable"

// minRelapses is the lowest RelapseLimit. A healthy region has a few relapses, too, because a lost node takes a replica
// with it.
const minRelapses = 5

// RelapseLimit returns how many relapses at one step or in one bake fail a region of that size. It is at least the
// number of replicas, so that each replica may move once, as when all nodes are replaced.
func RelapseLimit(size int32) int32 { return max(minRelapses, size) }

// noteServing records that the region serves its new version, and the generation.
func (s *stager) noteServing(st *model.RegionProgress, l *regionPlan) {
	if st.ServingSince == 0 {
		st.ServingSince = s.now
	}
	if st.ServingGeneration = 0; l.row != nil {
		st.ServingGeneration = l.row.Generation
	}
}

// noteRelapse is called when a region that served no longer serves, and counts this if it is a relapse. text says how many
// relapses there were, for the history. message is the reason why the region has failed, empty if it has not failed.
func (s *stager) noteRelapse(st *model.RegionProgress, l *regionPlan) (text, message string) {
	if l.row == nil || l.row.Generation != st.ServingGeneration || !l.To.Known || l.To.Ready >= min(l.To.Assigned, l.Enough()) {
		return "", ""
	}
	st.Relapses++
	limit := RelapseLimit(l.Size)
	text = fmt.Sprintf(" (%d of %d times that fail the region)", st.Relapses, limit)
	if st.Relapses < limit {
		return text, ""
	}
	message = fmt.Sprintf("it became ready and failed again %s in %d s", plural.Count(st.Relapses, "time"), (s.now-st.ServingSince)/1000)
	if why, said := s.placeOf(l.row).Why(); why != "" {
		message += ": " + why + " " + said
	}
	return text, message
}

// lacksAcknowledgement reports whether the region serves its new version alone, and only the acknowledgement of the
// route is missing.
func (l *regionPlan) lacksAcknowledgement() bool {
	routed := l.RegionPlan
	routed.Acknowledged = true
	return !l.Acknowledged && l.Serves() && routed.Alone()
}

// bakesOn reports whether every region of the wave still serves its new version, or was left out. Acknowledgements of
// routes may be missing.
func bakesOn(w *model.WaveProgress) bool {
	return !slices.ContainsFunc(w.Regions, func(st model.RegionProgress) bool {
		return st.State != regionMoved && st.State != regionSkipped && !st.Unacknowledged
	})
}

// rollAgain makes a region that served alone move again, and reports whether this failed the region.
func (s *stager) rollAgain(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, l *regionPlan) (failed bool) {
	relapse, message := s.noteRelapse(st, l)
	s.rollRegion(st)
	st.Score = l.progressScore()
	what := "it no longer serves alone and in full" + relapse
	if st.Unacknowledged = l.lacksAcknowledgement(); st.Unacknowledged {
		what = fmt.Sprintf("it no longer acknowledges route generation %d; a bake goes on", s.routes[st.RegionID].Generation)
	}
	s.log("RegionUnsettled", what+"; "+s.figuresText(l), d, st.RegionID)
	if message != "" {
		s.failRegion(d, w, st, ReasonUnstable, message)
		return true
	}
	return false
}
