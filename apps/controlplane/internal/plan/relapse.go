package plan

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// A region that serves its new version, at a step or alone, and then does not any more because
// replicas of it are not ready, has a relapse. Each has a progress deadline of its own, which
// ends one that lasts. What ends a version that comes and goes is how often it does so: without
// a limit it would restart its step's pause or its wave's bake for ever.
//
// A change of what the region was told, its being out of reach and a pause are no relapses.

// ReasonUnstable is why a region failed that became ready and then not ready too often.
const ReasonUnstable = "Unstable"

// minRelapses may happen to any region: a node that is lost takes a replica along.
const minRelapses = 5

// relapseLimit is how many relapses fail a region of that size, at one step or in one bake: as
// many as it has replicas, so that each may be moved once, as when all nodes are replaced.
func relapseLimit(size int32) int32 { return max(minRelapses, size) }

// noteServing notes that the region serves its new version, and of which generation.
func (p *planner) noteServing(st *model.CourseRegion, l *lane) {
	if st.ServingSince == 0 {
		st.ServingSince = p.now
	}
	if st.ServingGeneration = 0; l.row != nil {
		st.ServingGeneration = l.row.Generation
	}
}

// relapse counts one, if it is one that the region, which served, does not any more. text says
// which it is, for its history; message is why the region has failed, if it was the last.
func (p *planner) relapse(st *model.CourseRegion, l *lane) (text, message string) {
	if l.row == nil || l.row.Generation != st.ServingGeneration || !l.To.Known || l.To.Ready >= min(l.To.Told, l.Enough()) {
		return "", ""
	}
	st.Relapses++
	limit := relapseLimit(l.Size)
	text = fmt.Sprintf(" (%d of %d times that fail the region)", st.Relapses, limit)
	if st.Relapses < limit {
		return text, ""
	}
	message = fmt.Sprintf("it became ready and failed again %d times in %d s", st.Relapses, (p.now-st.ServingSince)/1000)
	if why, said := p.place(l.row).Why(); why != "" {
		message += ": " + why + " " + said
	}
	return text, message
}

// forgetRelapses has them be counted anew: the region made progress that is not lost again, or
// people had it begin anew.
func forgetRelapses(st *model.CourseRegion) {
	st.Relapses, st.ServingSince, st.ServingGeneration = 0, 0, 0
}
