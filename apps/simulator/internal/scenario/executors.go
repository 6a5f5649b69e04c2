package scenario

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent"
)

// Executors are flags about how simulated instances start, for scenarios in which instances start.
type Executors struct {
	StartP50 time.Duration `name:"start-p50" help:"Half of the instances take longer to start; 0: none takes any time." default:"0s"`
	StartP99 time.Duration `name:"start-p99" help:"One in a hundred takes longer." default:"0s"`
	Fail     float64       `help:"Share of starts that fail; three in a row are a crash loop." default:"0"`
}

func (x *Executors) checkTimes() error {
	switch {
	case x.StartP50 < 0 || x.StartP99 != 0 && x.StartP99 < x.StartP50:
		return errors.New("--start-p99: must be at least --start-p50")
	case x.Fail < 0 || x.Fail >= 1:
		return errors.New("--fail: has to be a share from 0 to below 1")
	}
	return nil
}

// z99 is how many standard deviations the 99th percentile of a normal distribution is above its mean.
const z99 = 2.3263

// simulatedRuntime draws start times from the log-normal distribution with the two percentiles. They are never
// negative and have a long tail, as the times of loading models do.
func (x *Executors) simulatedRuntime(_ int, rnd *rand.Rand) agent.SimulatedConfig {
	var mu sync.Mutex
	var cfg agent.SimulatedConfig
	if x.StartP50 > 0 {
		sigma := 0.0
		if x.StartP99 > x.StartP50 {
			sigma = math.Log(float64(x.StartP99)/float64(x.StartP50)) / z99
		}
		cfg.Start = func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return time.Duration(float64(x.StartP50) * math.Exp(sigma*rnd.NormFloat64()))
		}
	}
	if x.Fail > 0 {
		cfg.Failures = func() int {
			mu.Lock()
			defer mu.Unlock()
			n := 0
			for rnd.Float64() < x.Fail {
				n++
			}
			return n
		}
	}
	return cfg
}
