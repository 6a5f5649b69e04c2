package plan

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// behaviour says how a version behaves in a region for a while.
type behaviour struct {
	// ready is the percentage of its replicas that are ready.
	ready  int32
	reason string
	doomed bool
	// rejected means that the region rejects the version, but may accept it later.
	rejected bool
	// away says what does not answer meanwhile: "gateways", "region", or "" for nothing.
	away  string
	lasts int64
}

func drawBehaviour(t *rapid.T) behaviour {
	b := behaviour{
		ready: rapid.SampledFrom([]int32{0, 0, 50, 100, 100, 100}).Draw(t, "ready"),
		away:  rapid.SampledFrom([]string{"", "", "", "", "gateways", "region"}).Draw(t, "away"),
		lasts: rapid.SampledFrom([]int64{1, 5, 20, 20, 61, 200}).Draw(t, "lasts") * 1000,
	}
	if b.away == "region" {
		b.lasts = min(b.lasts, shortest) // an unreachable region stops the clock of a deadline
	}
	if b.ready < 100 {
		b.reason = rapid.SampledFrom([]string{"", "Error", "HealthCheckFailed", "CrashLoop", "Unschedulable", ReasonImagePullError}).Draw(t, "reason")
		b.doomed = b.reason == "CrashLoop" && rapid.Bool().Draw(t, "doomed")
		b.rejected = rapid.IntRange(0, 9).Draw(t, "rejected") == 0
	}
	return b
}

// shortest is the shortest time for which a region is in reach, and the longest for which it is out of reach, in ms.
const shortest = 20_000

// drawCycle draws a cycle that leaves time for progress. Only the region us may become unreachable, because with two
// such regions, one of them might be unreachable at any time.
func drawCycle(t *rapid.T, region string) []behaviour {
	return rapid.SliceOfN(rapid.Custom(drawBehaviour), 1, 4).Filter(func(cycle []behaviour) bool {
		if region != "us" && slices.ContainsFunc(cycle, func(b behaviour) bool { return b.away == "region" }) {
			return false
		}
		return slices.ContainsFunc(cycle, func(b behaviour) bool { return b.away == "" && b.lasts >= shortest })
	}).Draw(t, "cycle of "+region)
}

// behave makes the region's agent obey. Replicas of the newest version behave as b says, and other versions are
// healthy.
func (w *simulation) behave(region string, b behaviour) {
	w.setRegion(region, func(r *model.Region) {
		r.Status = windlassv1.RegionStatus_REGION_STATUS_CONNECTED
		if b.away == "region" {
			r.Status = windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE
		}
	})
	if b.away == "region" {
		return
	}
	newest := w.deps[len(w.deps)-1].ID
	for _, k := range sortedRows(w.rows) {
		row := w.rows[k]
		if k.region != region {
			continue
		}
		ready := row.Replicas
		if k.deployment == newest {
			ready = row.Replicas * b.ready / 100
		}
		w.apply(region, k.deployment, ready)
		if ready == row.Replicas {
			continue
		}
		w.observe(region, k.deployment, func(o *model.Observed) {
			o.Reason = b.reason
			if b.doomed {
				o.Running, o.Fail, o.Doomed = o.Running-1, 1, 1
			}
			if b.rejected {
				o.Phase, o.Code, o.Retryable = int32(agentv1.AppliedState_PHASE_REJECTED), "Unavailable", true
			}
		})
	}
	w.ack(region)
	if b.away == "gateways" {
		w.losesGateways(region)
	}
}

// TestStaged_RepeatedStatesEndProperty requires that every rollout succeeds, goes back or waits for a person, in a time
// that its policy limits, if each region repeats the same cycle and people do nothing.
func TestStaged_RepeatedStatesEndProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const limit = 60 * time.Second
		policy := drawPolicy(t)
		policy.Analysis = nil // a held check waits for people
		if policy.WaitForCapacity != nil {
			policy.WaitForCapacity = durationpb.New(2 * limit)
		}
		w := newSimulation(t, "eu", "us")
		w.policy(policy)
		size := rapid.Int32Range(1, 8).Draw(t, "size")
		s := spec(size, "eu", "us")
		s.ProgressDeadline = durationpb.New(limit)
		s.MinReady = rapid.Int32Range(0, 2).Draw(t, "min ready")
		if rapid.IntRange(0, 2).Draw(t, "several roles") == 0 {
			groups(s)
		}
		w.deploy(s)
		w.settle()
		if rapid.IntRange(0, 3).Draw(t, "alike") == 0 {
			w.deployAlike(s)
		} else {
			w.deploy(s)
		}
		cycles := map[string][]behaviour{}
		for _, r := range []string{"eu", "us"} {
			cycles[r] = drawCycle(t, r)
		}
		w.repeat(cycles, w.now+5*maxTime(policy, size, limit)) // a region can be out of reach for three quarters of the time
	})
}

// repeat repeats the regions' cycles until the rollout ends. Unlike a history, it does not check every
// plan.
func (w *simulation) repeat(cycles map[string][]behaviour, end int64) {
	at, until := map[string]int{}, map[string]int64{}
	for !w.ended() {
		require.Less(w.t, w.now, end, "the rollout does not end: %s", w.app.Message)
		next := w.now + maxPoll
		for _, region := range sortedKeys(cycles) {
			cycle := cycles[region]
			if until[region] <= w.now {
				at[region]++
				until[region] = w.now + cycle[at[region]%len(cycle)].lasts
			}
			w.behave(region, cycle[at[region]%len(cycle)])
			next = min(next, until[region])
		}
		for range 20 {
			out := Next(w.input(), w.now)
			w.write(out)
			if !out.Changed() {
				if out.Next > w.now {
					next = min(next, max(out.Next, w.now+1000))
				}
				break
			}
			for _, region := range sortedKeys(cycles) {
				w.behave(region, cycles[region][at[region]%len(cycles[region])])
			}
		}
		w.now = next
	}
}

// ended reports whether the rollout is over, goes back, or waits for people.
func (w *simulation) ended() bool {
	c := w.rolloutState.Progress
	if w.app.RolloutID == "" || c.Back || c.PausedAt != 0 {
		return true
	}
	for _, wave := range c.Waves {
		if wave.State == waveBaking && Shut(c, WaveGate(c, wave), wave.Approvals) && w.now >= wave.BakingSince+BakeTime(c, wave) {
			return true
		}
		for _, st := range wave.Regions {
			until, person := Waits(c, st)
			if person || st.StoppedAt != 0 && w.now >= until && Shut(c, StepGate(c, st), st.Approvals) {
				return true
			}
		}
	}
	return false
}

// maxTime returns the maximum time of a rollout in two regions, ms: each stage of each region restarts as
// often as it may, and each time every replica takes as long as it may.
func maxTime(policy *windlassv1.RolloutPolicy, size int32, limit time.Duration) int64 {
	d := policy.GetDeadlines()
	turn := max(limit, d.GetProgress().AsDuration()) + max(d.GetImage().AsDuration(), d.GetCrash().AsDuration())
	turn = turn*time.Duration(2*size+4) + max(policy.GetWaitForCapacity().AsDuration(), d.GetUnschedulable().AsDuration())
	stages := time.Duration(0)
	for _, s := range append(stepsOf(policy), strategy.Step{}) {
		stages += s.Pause + turn
	}
	for _, w := range wavesOf(policy) {
		stages += w.GetBakeTime().AsDuration() + turn
	}
	return 2 * int64(RelapseLimit(size)+1) * stages.Milliseconds()
}
