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

// The scaled app follows its load, which differs between regions and changes every 10 s of a storm. It stays
// in its regions, and is never deleted.
const (
	scaledName    = "scaled-0"
	mostScaled    = 4
	cpuMillicores = 500
	cpuTarget     = 50
	newLoadEvery  = 10 * time.Second

	anotherWriter = "another writer than the scaler changed replicas"
	scaledByHand  = "a scaled app was scaled by hand"
)

func scalingPolicy() *windlassv1.ScalingPolicy {
	pace := func(window time.Duration, step string) *windlassv1.ScalingPace {
		return &windlassv1.ScalingPace{Window: durationpb.New(window), Step: step, Every: durationpb.New(time.Second)}
	}
	return &windlassv1.ScalingPolicy{
		Max: mostScaled, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_CPU, Target: strconv.Itoa(cpuTarget)}},
		Up: pace(time.Second, "100%"), Down: pace(5*time.Second, "50%"),
	}
}

// load is the load of the scaled app.
type load struct {
	seed uint64
	// at is the number of the load. It grows during storms.
	at atomic.Int64
}

// replicas returns how many replicas the load needs in the region.
func (l *load) replicas(region string) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(region)) // never fails
	return 1 + int(rand.NewPCG(l.seed^h.Sum64(), uint64(l.at.Load())).Uint64()%mostScaled)
}

// cpu returns the load of an app in the region.
func (l *load) cpu(region, app string) (millicores float64, ok bool) {
	return float64(l.replicas(region)) * cpuMillicores * cpuTarget / 100, app == scaledName
}
