package plan

import (
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// waitingPlace is a place where a rollout waits for people: a step of a region since a time, or the end of a wave if
// region is empty.
type waitingPlace struct {
	rollout, region string
	n               int
	since           int64
}

// agreed has the approvals and promotions that people gave. It is kept apart from the planner's state.
type agreed struct {
	promoted map[waitingPlace]bool
	approved map[waitingPlace][]string
}

// promote promotes as a person. The promotion counts where regions wait now.
func (f *stagedSimulation) promote(full bool) error {
	before := f.rolloutState.Progress.Clone()
	_, err := Promote(f.rolloutState.Progress, "ada", full, f.now)
	if err == nil {
		for at := range waitingPlaces(before) {
			f.agreed.promoted[at] = true
		}
	}
	return err
}

// approve approves at all gates that wait. Some gates refuse dora, because dora is the deployer.
func (f *stagedSimulation) approve(who ...string) {
	for _, name := range who {
		before := f.rolloutState.Progress.Clone()
		_, _, err := Approve(f.rolloutState.Progress, model.Approval{
			ByID: "key-" + name, By: name, Role: windlassv1.Role_ROLE_OWNER, At: f.now,
		}, func(id string) string { return id })
		if err != nil {
			continue
		}
		for at := range waitingPlaces(before) {
			if !slices.Contains(f.agreed.approved[at], name) {
				f.agreed.approved[at] = append(f.agreed.approved[at], name)
			}
		}
	}
}

func waitingPlaces(c *model.Progress) map[waitingPlace]bool {
	out := map[waitingPlace]bool{}
	for i, w := range c.Waves {
		if w.State == waveBaking {
			out[waitingPlace{c.RolloutID, "", i, w.BakingSince}] = true
		}
		for _, st := range w.Regions {
			if st.State == regionRolling && st.StoppedAt != 0 {
				out[waitingPlace{c.RolloutID, st.RegionID, st.Step, st.StoppedAt}] = true
			}
		}
	}
	return out
}

// isApproved reports whether enough people approved at the place.
func (f *stagedSimulation) isApproved(gate *windlassv1.Approval, at waitingPlace) bool {
	n := 0
	for _, who := range f.agreed.approved[at] {
		if who != "dora" || !gate.GetNotDeployer() {
			n++
		}
	}
	return gate == nil || n >= max(1, int(gate.GetCount()))
}

// requireAgreed checks that a region passes a step, and a rollout passes a wave, only with the required approvals and
// promotions. before is the state before the planner ran.
func (f *stagedSimulation) requireAgreed(before *model.Progress, rows map[rowKey]model.Topology, live string) {
	after := f.rolloutState.Progress
	if before == nil || after == nil || before.RolloutID != after.RolloutID || after.Back || len(before.Waves) == 0 {
		return
	}
	for i, was := range before.Waves {
		for j, st := range was.Regions {
			from := st.Step
			switch {
			case isForward(st.State):
			case st.State == regionSkipped && st.HalfWay:
				st.StoppedAt = st.StoppedBefore // the region continues with its earlier step
			default:
				row := rows[rowKey{live, st.RegionID}]
				if !isRowActive(&row) || before.OldSizes[st.RegionID] == 0 {
					continue // the region has no replicas when its turn comes
				}
				from = 0
			}
			for n := from; n < after.Waves[i].Regions[j].Step; n++ {
				f.requireAgreedStep(before, st, n)
			}
		}
		gate := wavePolicy(before, was).GetApproval()
		moved := slices.ContainsFunc(was.Regions, func(r model.RegionProgress) bool { return r.State == regionMoved })
		left := after.Waves[i].State == waveDone && was.State != waveDone
		if after.Waves[i].State != waveDone && moved {
			left = f.app.LiveDeploymentID != live ||
				i+1 < len(after.Waves) && before.Waves[i+1].State == waveWaiting && after.Waves[i+1].State != waveWaiting
		}
		if left {
			require.True(f.t, f.isApproved(gate, waitingPlace{before.RolloutID, "", i, was.BakingSince}), "the rollout left wave %s without an approval", was.Name)
		}
	}
}

func (f *stagedSimulation) requireAgreedStep(c *model.Progress, st model.RegionProgress, n int) {
	step := stepsOf(c.Policy)[n]
	at := waitingPlace{c.RolloutID, st.RegionID, n, st.StoppedAt}
	if step.Approval != nil {
		require.True(f.t, f.isApproved(step.Approval, at), "%s is past step %d without an approval: %+v", st.RegionID, n+1, st)
	} else if step.Manual && c.FullBy == "" {
		require.True(f.t, f.agreed.promoted[at], "%s is past step %d without a promotion: %+v", st.RegionID, n+1, st)
	}
}
