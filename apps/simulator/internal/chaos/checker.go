package chaos

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
)

// Violation is a promise that was broken.
type Violation struct {
	Kind       string   `json:"kind"`
	At         float64  `json:"at_s"`
	App        string   `json:"app,omitempty"`
	Region     string   `json:"region,omitempty"`
	Deployment string   `json:"deployment,omitempty"`
	Text       string   `json:"text"`
	Seed       uint64   `json:"seed"`
	History    []string `json:"history"`
}

// String returns all that a person needs to investigate the violation.
func (v Violation) String() string {
	return fmt.Sprintf("%s: %s (--seed=%d)\n%s", v.Kind, v.Text, v.Seed, strings.Join(v.History, "\n"))
}

// violationsError is the error of a run with violations.
func violationsError(violations []Violation) error {
	if len(violations) == 0 {
		return nil
	}
	return fmt.Errorf("%d promise(s) broken; first: %s", len(violations), violations[0])
}

// checker checks what happens against the promises, for each (deployment, region). It observes the executors,
// independently of everything else, and reads the database, on which everything else relies.
//
// While faults occur:
//
//   - No generation and no revision goes back.
//   - Everything that is said to be ready really was.
//
// After all faults are mended:
//
//   - Every rollout has ended.
//   - The wanted instances run: no more, no fewer, and none twice.
//   - The database lists exactly these instances.
//   - Every place has the newest generation.
//   - Feeds have no hole.
//   - Acknowledged deployments exist.
//   - Each change of a scaled app's count was made by one decision of the scaler, or by a rollout, or by a request to an app
//     at zero: see the ledger.
//   - Stable slots count from 0 without gaps, and no slot has two instances.
//   - A scaled app has the replicas that the scaler wrote last, and each role of a pool the instances.
//   - No request waits. Those that failed were in flight when an instance crashed or the gateway was killed.
//   - Servers hold exactly the wanted replicas of models, and those that the database lists. No model was unloaded while it
//     had a request.
//   - Without requests, apps go to zero, and all roles of a pool together. One request wakes each again.
//
// A restored database is another history: generations and revisions may be lower than before, and
// acknowledged changes may be gone. The inboxes of agents show the control plane the difference, and a new
// epoch begins. An agent that lost its inbox as well knows no other history, and the same epoch continues.
type checker struct {
	w       *testbed.Testbed
	seed    uint64
	history *history
	// requests are the requests of clients. Nil: there are none.
	requests *requests
	// fixed are the replicas of apps that are never scaled.
	fixed map[string]int

	mu      sync.Mutex
	applied map[place]applied
	ready   map[instance]bool // instances that were ever ready, with each deployment that they had, and without one
	count   map[place]int     // of instances in ready
	// epochs and heads are the last values that were read, by region.
	epochs, heads map[string]int64
	claimed       map[string]bool // deployments whose claim to be ready was checked
	told          map[string]bool // instances whose row with status ready was checked
	acknowledged  map[string]string
	decided       map[[3]string]decision // the newest decision that was seen, by app, region and role
	scalings      int
	zeros         int // of scalings, decisions for zero
	audited       audit
	restores      int               // of the database
	losses        map[string]int    // of inboxes, by region
	apps          map[string]string // of every deployment that was ever acknowledged
	violations    []Violation
}

type applied struct {
	epoch, generation int64
	// restores and losses are the counts at that time.
	restores, losses int
}

// isOlder reports whether a is older than b.
func (a applied) isOlder(b applied) bool {
	return a.epoch < b.epoch || a.epoch == b.epoch && a.generation < b.generation
}

func newChecker(h *history, seed uint64) *checker {
	return &checker{
		seed: seed, history: h, apps: map[string]string{}, fixed: map[string]int{}, applied: map[place]applied{}, ready: map[instance]bool{}, count: map[place]int{},
		epochs: map[string]int64{}, heads: map[string]int64{}, claimed: map[string]bool{}, told: map[string]bool{}, acknowledged: map[string]string{}, decided: map[[3]string]decision{}, losses: map[string]int{},
	}
}

// onApplied is called for every assignment that an agent hands to its runtime.
func (c *checker) onApplied(region, deployment string, epoch, generation int64) {
	p := place{region, deployment}
	c.history.add(event{region: region, deployment: deployment, text: fmt.Sprintf("the agent applies generation %d of epoch %d", generation, epoch)})
	c.mu.Lock()
	before, ok := c.applied[p]
	now := applied{epoch, generation, c.restores, c.losses[region]}
	c.applied[p] = now
	c.mu.Unlock()
	if forgotten := now.restores > before.restores && now.losses > before.losses; ok && now.isOlder(before) && !forgotten {
		c.recordViolationf("generation went back", "", p, "from %d of epoch %d to %d of epoch %d", before.generation, before.epoch, generation, epoch)
	}
}

func (c *checker) onRemoved(region, deployment string) {
	c.history.add(event{region: region, deployment: deployment, text: "the agent removes it"})
}

func (c *checker) onReady(region, deployment, id string) {
	p := place{region, deployment}
	c.history.add(event{region: region, deployment: deployment, text: "instance " + id + " is ready"})
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := (instance{id, p}); !c.ready[i] {
		c.ready[i], c.ready[instance{id, place{region: region}}] = true, true
		c.count[p]++
	}
}

// recordDeployment records a deployment that a user got as an answer.
func (c *checker) recordDeployment(app, deployment string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acknowledged[deployment], c.apps[deployment] = app, app
}

// databaseRestored is called while the database is away, before it starts from an older backup.
func (c *checker) databaseRestored() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.acknowledged)
	clear(c.heads)
	clear(c.decided)
	c.restores++
}

func (c *checker) restoresSoFar() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.restores
}

// inboxLost is called when a region's agent has lost its inbox.
func (c *checker) inboxLost(region string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.losses[region]++
}

// recordViolationf records a violation, if it is the first of its kind.
func (c *checker) recordViolationf(kind, app string, p place, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.ContainsFunc(c.violations, func(v Violation) bool { return v.Kind == kind }) {
		return
	}
	if app == "" {
		app = c.apps[p.deployment]
	}
	c.violations = append(c.violations, Violation{
		Kind: kind, At: c.history.sinceBegin().Seconds(), App: app, Region: p.region, Deployment: p.deployment,
		Text: fmt.Sprintf(format, args...), Seed: c.seed, History: c.history.eventsAbout(app, p),
	})
}

// countScalings returns how many decisions to scale were seen. Some are replaced by later ones before they are seen.
func (c *checker) countScalings() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.scalings
}

func (c *checker) foundViolations() []Violation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Violation(nil), c.violations...)
}

// watchEvery is the interval between queries of the database while things break.
const watchEvery = 200 * time.Millisecond

// watchDatabase checks the database until ctx ends. Failed queries are repeated.
func (c *checker) watchDatabase(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
		_ = c.checkDatabase(bounded) // the next check repeats a failed one
		cancel()
	}
}

// checkDatabase reads the present claims of the database, and checks them against what happened.
func (c *checker) checkDatabase(ctx context.Context) error {
	before := c.restoresSoFar()
	s, err := readClaims(ctx, c.w.DB)
	if err == nil && c.restoresSoFar() == before { // otherwise the claims may be of an earlier history
		c.checkClaims(s)
	}
	return err
}

// wasReady reports whether the instance was ever ready. A version that takes over a workload has all its instances, even
// instances that it still has to replace.
func (c *checker) wasReady(i instance) bool {
	app := c.apps[i.place.deployment]
	return c.ready[i] || (app == "" || takesOver(app)) && c.ready[instance{i.id, place{region: i.place.region}}]
}

// checkClaims checks the claims of the database against what happened.
func (c *checker) checkClaims(s claims) {
	type found struct {
		kind, app string
		place     place
		text      string
	}
	var bad []found
	c.mu.Lock()
	for _, h := range s.heads {
		if before, ok := c.heads[h.region]; ok && h.revision < before && h.epoch == c.epochs[h.region] {
			bad = append(bad, found{"revision went back", "", place{region: h.region}, fmt.Sprintf("from %d to %d in epoch %d", before, h.revision, h.epoch)})
		}
		c.heads[h.region], c.epochs[h.region] = h.revision, h.epoch
	}
	for _, d := range s.decisions {
		at := [3]string{d.app, d.region, d.role}
		if d.at != c.decided[at].at && d.from != d.to {
			c.scalings++
			if d.to == 0 && d.role != prefill {
				c.zeros++
			}
		}
		if text := d.outOfBounds(s.decisions); text != "" {
			bad = append(bad, found{outOfBounds, d.app, place{region: d.region}, text})
		}
		c.decided[at] = d
	}
	for _, i := range s.ready {
		if c.told[i.id] {
			continue
		}
		c.told[i.id] = true
		if !c.wasReady(i) {
			bad = append(bad, found{"an instance that was never ready is said to be ready", "", i.place, "instance " + i.id})
		}
	}
	for _, d := range s.claims {
		if c.claimed[d.deployment] {
			continue
		}
		c.claimed[d.deployment] = true
		for _, region := range d.regions {
			p := place{region, d.deployment}
			if want := c.fixed[d.app]; c.count[p] < want {
				bad = append(bad, found{"a deployment that was not ready is said to be ready", d.app, p, fmt.Sprintf("%d of %d instances ever were", c.count[p], want)})
			}
		}
	}
	c.mu.Unlock()
	for _, b := range bad {
		c.recordViolationf(b.kind, b.app, b.place, "%s", b.text)
	}
}
