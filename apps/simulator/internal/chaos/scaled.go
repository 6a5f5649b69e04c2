package chaos

import (
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Three apps scale. They stay in their regions, and are never deleted:
//
//   - scaled-0 follows its CPU load, which differs between regions and changes every 10 s while faults occur.
//   - zero-0 follows its requests, and goes to zero without them. A request wakes it.
//   - pool-0 is a pool. Its role decode follows the requests, and prefill the CPU load, in a ratio to decode. The pool goes
//     to zero without requests, as zero-0 does.
const (
	scaledName    = "scaled-0"
	zeroName      = "zero-0"
	poolName      = "pool-0"
	prefill       = "prefill"
	decode        = "decode"
	maxScaled     = 4
	cpuMillicores = 500
	cpuTarget     = 50
	// inFlightTarget is how many requests one instance should have at a time.
	inFlightTarget = 2
	newLoadEvery   = 10 * time.Second
	// zeroAfter is the time without requests after which an app goes to zero: the shortest that a policy may have.
	zeroAfter = 10 * time.Second

	anotherWriter = "another writer than the scaler changed replicas"
	outOfBounds   = "a decision is out of bounds"
	staysAwake    = "an app stays awake"
	roleMissed    = "a role was missed"
	notTogether   = "roles are not at zero together"
	scaledByHand  = "a scaled app was scaled by hand"
)

// bounds are the lowest and the highest number of replicas of scaled apps, or of instances of each role of a pool. A pool
// may be at zero, too.
var bounds = map[string][2]int32{scaledName: {1, maxScaled}, zeroName: {0, maxScaled}, poolName: {1, maxScaled}}

func paceOf(window time.Duration, step string) *windlassv1.ScalingPace {
	return &windlassv1.ScalingPace{Window: durationpb.New(window), Step: step, Every: durationpb.New(time.Second)}
}

// scalingPolicy returns the policy of a scaled app.
func scalingPolicy(app string) *windlassv1.ScalingPolicy {
	up, down := paceOf(time.Second, "100%"), paceOf(5*time.Second, "50%")
	cpu := []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_CPU, Target: strconv.Itoa(cpuTarget)}}
	inFlight := []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: strconv.Itoa(inFlightTarget)}}
	zero := &windlassv1.ScaleToZero{After: durationpb.New(zeroAfter)}
	switch app {
	case zeroName:
		return &windlassv1.ScalingPolicy{Min: new(int32(0)), Max: maxScaled, Metrics: inFlight, Up: up, Down: down, Zero: zero}
	case poolName:
		return &windlassv1.ScalingPolicy{Zero: zero, Roles: []*windlassv1.RoleScaling{
			{Role: prefill, Max: maxScaled, Metrics: cpu, Up: up, Down: down, Couple: &windlassv1.ScalingCouple{Role: decode, Ratio: []float64{0.5, 2}}},
			{Role: decode, Max: maxScaled, Metrics: inFlight, Up: up, Down: down},
		}}
	}
	return &windlassv1.ScalingPolicy{Max: maxScaled, Metrics: cpu, Up: up, Down: down}
}

// scaleSpec turns the spec into the spec of a scaled app.
func scaleSpec(app string, spec *windlassv1.DeploymentSpec) {
	spec.Replicas, spec.Resources = nil, &windlassv1.Resources{CpuMillicores: cpuMillicores}
	if app == scaledName {
		return
	}
	// A request may wait as long as the faults of a round and the settling after them last.
	patient := durationpb.New(longestWait)
	spec.Routing = &windlassv1.RoutingPolicy{QueueWait: patient, ColdStart: &windlassv1.ColdStart{Hold: patient}}
	spec.Ports = []*windlassv1.Port{{Name: "http"}}
	if app == poolName {
		spec.Layout = windlassv1.Layout_LAYOUT_POOLED
		spec.Roles = []*windlassv1.RoleSpec{{Name: prefill}, {Name: decode, Entry: true}}
	}
}

// load is the CPU load of scaled apps.
type load struct {
	seed uint64
	// at is the number of the load. It grows while faults occur.
	at atomic.Int64
}

// replicasNeeded returns how many replicas the load needs in the region.
func (l *load) replicasNeeded(region string) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(region)) // never fails
	return 1 + int(rand.NewPCG(l.seed^h.Sum64(), uint64(l.at.Load())).Uint64()%maxScaled)
}

// cpuOf returns the load of an app, or of a role of a pool, in the region.
func (l *load) cpuOf(region, app, role string) (millicores float64, ok bool) {
	return float64(l.replicasNeeded(region)) * cpuMillicores * cpuTarget / 100, app == scaledName || app == poolName && role == prefill
}
