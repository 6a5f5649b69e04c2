package chaos

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// fixture is a checker with the state of a test: the app loose-0, of which two instances of dep_a run in
// region-1, and the app fixed-0 with dep_z in region-2.
type fixture struct {
	*checker
	time  time.Time
	books books
	sight sight
}

const seed = 4711

var (
	here  = place{"region-1", "dep_a"}
	there = place{"region-2", "dep_z"}
)

func setup(t *testing.T) *fixture {
	t.Helper()
	s := &fixture{time: time.Unix(1000, 0)}
	s.checker = newChecker(newHistory(func() time.Time { s.time = s.time.Add(time.Millisecond); return s.time }), seed)
	s.fixed["fixed-0"] = 2
	s.books = books{quarantined: map[place]bool{}, deployments: map[string]bool{}}
	s.sight = sight{running: map[string]map[string]int{}, ready: map[string]map[string][]string{}}
	s.checkClaims(claims{heads: []head{{here.region, 1, 7}, {there.region, 1, 7}}})
	s.runs("loose-0", here, "ins_1", "ins_2")
	s.runs("fixed-0", there, "ins_8", "ins_9")
	return s
}

// runs records that a version was deployed, applied, started, reported and acknowledged.
func (s *fixture) runs(app string, p place, instances ...string) {
	s.history.add(event{part: "user", app: app, text: "deploy: done"})
	s.recordDeployment(app, p.deployment)
	s.onApplied(p.region, p.deployment, 1, 3)
	for _, i := range instances {
		s.onReady(p.region, p.deployment, i)
		s.books.instances = append(s.books.instances, instance{i, p})
	}
	n := len(instances)
	s.books.deployments[p.deployment] = true
	s.books.rows = append(s.books.rows, row{
		place: p, app: app, status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED, replicas: n,
		generation: 3, appliedGeneration: 3, countsGeneration: 3, readyReplicas: n, count: n,
	})
	s.sight.running[p.region] = map[string]int{p.deployment: n}
	s.sight.ready[p.region] = map[string][]string{p.deployment: instances}
}

// claims returns the claims that the database would make about the fixture.
func (s *fixture) claims() claims {
	return claims{
		heads:  []head{{here.region, 1, 8}, {there.region, 1, 8}},
		ready:  s.books.instances,
		claims: []claim{{"loose-0", here.deployment, []string{here.region}}, {"fixed-0", there.deployment, []string{there.region}}},
	}
}

// noise records n events of other apps and places, and one event that concerns all of them.
func (s *fixture) noise(n int) {
	for i := range n {
		s.history.add(event{part: "user", app: fmt.Sprintf("other-%d", i), text: "scale: done"})
		s.history.add(event{part: "fault", region: "region-3", text: "kill the agent of region-3"})
		s.onApplied("region-3", "dep_o", 1, int64(10+i))
		s.onRemoved(here.region, "dep_p")
		s.onReady("region-3", here.deployment, fmt.Sprintf("ins_o%d", i))
	}
	s.history.add(event{part: "fault", text: "kill mariadb"})
}

// violated requires exactly one violation, whose history names no other app and no other place.
func (s *fixture) violated(t *testing.T, kind string, lines ...string) {
	t.Helper()
	all := s.foundViolations()
	require.Len(t, all, 1, "%v", all)
	require.Equal(t, kind, all[0].Kind)
	require.EqualValues(t, seed, all[0].Seed)
	told := make([]string, len(all[0].History))
	for i, line := range all[0].History {
		told[i] = line[len("    0.000s "):]
	}
	require.Equal(t, lines, told)
	err := violationsError(all)
	require.ErrorContains(t, err, fmt.Sprintf("--seed=%d", seed))
	require.ErrorContains(t, err, kind)
	for _, line := range lines {
		require.ErrorContains(t, err, line)
	}
}

// ofHere are the events of dep_a in region-1 that led to the fixture.
var ofHere = []string{
	"user loose-0: deploy: done",
	"dep_a region-1: the agent applies generation 3 of epoch 1",
	"dep_a region-1: instance ins_1 is ready",
	"dep_a region-1: instance ins_2 is ready",
	"fault: kill mariadb",
}

// patient is so long that slow settling is no violation.
var patient = patience{converge: time.Hour, end: time.Minute}

func TestChecker_FindsNothingWhenAllIsInOrder(t *testing.T) {
	s := setup(t)
	s.noise(100)
	s.checkClaims(s.claims())
	require.Nil(t, s.compareContent(s.books, s.sight))
	require.Empty(t, s.foundViolations())
	require.NoError(t, violationsError(s.foundViolations()))
}

func TestChecker_AllowsARestoredDatabaseToBeLower(t *testing.T) {
	s := setup(t)
	s.databaseRestored()
	s.onApplied(here.region, here.deployment, 2, 1)
	s.checkClaims(claims{heads: []head{{here.region, 2, 3}, {there.region, 2, 3}}})
	delete(s.books.deployments, there.deployment)
	s.books.rows[0].generation, s.books.rows[0].appliedGeneration = 1, 1
	require.Nil(t, s.compareContent(s.books, s.sight), "changes that were acknowledged since the backup may be gone")
	require.Empty(t, s.foundViolations())
}

func TestChecker_FindsARevisionThatGoesBack(t *testing.T) {
	s := setup(t)
	s.history.deleteEvents()
	s.noise(1)
	s.checkClaims(claims{heads: []head{{here.region, 1, 6}}})
	s.violated(t, "revision went back", "dep_p region-1: the agent removes it", "fault: kill mariadb")
}

func TestChecker_FindsAGenerationThatGoesBack(t *testing.T) {
	s := setup(t)
	s.noise(100)
	s.onApplied(here.region, here.deployment, 1, 2)
	s.checkClaims(s.claims())
	s.violated(t, "generation went back", append(ofHere[:5:5], "dep_a region-1: the agent applies generation 2 of epoch 1")...)
}

func TestChecker_AllowsAnUnseenGenerationToGoBack(t *testing.T) {
	for _, happens := range []struct {
		name    string
		does    func(*fixture)
		allowed bool
	}{
		{"the database was restored and the inbox lost", func(s *fixture) { s.databaseRestored(); s.inboxLost(here.region) }, true},
		{"the inbox was lost and the database restored", func(s *fixture) { s.inboxLost(here.region); s.databaseRestored() }, true},
		{"the database was restored", func(s *fixture) { s.databaseRestored() }, false},
		{"the inbox was lost", func(s *fixture) { s.inboxLost(here.region) }, false},
		{"the inbox of another region was lost", func(s *fixture) { s.databaseRestored(); s.inboxLost("region-2") }, false},
	} {
		t.Run(happens.name, func(t *testing.T) {
			s := setup(t)
			s.noise(100)
			happens.does(s)
			s.onApplied(here.region, here.deployment, 1, 2)
			s.checkClaims(s.claims())
			if happens.allowed {
				require.Empty(t, s.foundViolations())
				s.onApplied(here.region, here.deployment, 1, 1)
				s.checkClaims(s.claims())
			}
			require.NotEmpty(t, s.foundViolations())
		})
	}
}

func TestChecker_FindsReadinessThatNeverHappened(t *testing.T) {
	t.Run("of an instance", func(t *testing.T) {
		s := setup(t)
		s.noise(100)
		c := s.claims()
		c.ready = append(c.ready, instance{"ins_3", here})
		s.checkClaims(c)
		s.violated(t, "an instance that was never ready is said to be ready", ofHere...)
	})
	t.Run("of an instance in another place", func(t *testing.T) {
		s := setup(t)
		s.noise(100)
		c := s.claims()
		c.ready = []instance{{"ins_8", here}}
		s.checkClaims(c)
		s.violated(t, "an instance that was never ready is said to be ready", ofHere...)
	})
	t.Run("of a deployment", func(t *testing.T) {
		s := setup(t)
		s.fixed["loose-0"] = 3
		s.noise(100)
		s.checkClaims(s.claims())
		s.violated(t, "a deployment that was not ready is said to be ready", ofHere...)
	})
}

func TestChecker_FindsDisagreement(t *testing.T) {
	for name, c := range map[string]struct {
		kind string
		do   func(s *fixture)
	}{
		"a change that never arrived": {"a change was missed", func(s *fixture) { s.books.rows[0].generation = 4 }},
		"too few run": {"a change was missed", func(s *fixture) {
			s.sight.running[here.region][here.deployment] = 1
		}},
		"two run and one is ready": {"a change was missed", func(s *fixture) {
			s.sight.ready[here.region][here.deployment] = []string{"ins_1"}
		}},
		"too many run":                    {"instances run twice", func(s *fixture) { s.sight.running[here.region][here.deployment] = 3 }},
		"a stopped deployment runs":       {"an orphan runs", func(s *fixture) { s.books.rows[0].status = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED }},
		"a deployment without a row runs": {"an orphan runs", func(s *fixture) { s.books.rows = s.books.rows[1:] }},
		"a place that does not stop":      {"a rollout is stuck", func(s *fixture) { s.books.rows[0].status = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING }},
		"a deployment that is not ready": {"a rollout is stuck", func(s *fixture) {
			s.books.moving = []moving{{"loose-0", here.deployment, "deployment dep_a is building"}}
		}},
		"a report that was lost":      {"a report was missed", func(s *fixture) { s.books.rows[0].readyReplicas = 1 }},
		"a row without an instance":   {"a report was missed", func(s *fixture) { s.books.instances = append(s.books.instances, instance{"ins_3", here}) }},
		"an instance without a row":   {"a report was missed", func(s *fixture) { s.books.instances = s.books.instances[1:] }},
		"an acknowledged row is gone": {"an acknowledged deployment is lost", func(s *fixture) { delete(s.books.deployments, here.deployment) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := setup(t)
			s.noise(1)
			c.do(s)
			why := s.compareContent(s.books, s.sight)
			require.NotNil(t, why)
			late, stuck := s.recordUnsettled(30*time.Second, patient, why)
			require.False(t, late || stuck, "it may still become right")
			require.Empty(t, s.foundViolations())
			_, stuck = s.recordUnsettled(61*time.Second, patient, why)
			require.True(t, stuck)
			want := ofHere
			if why.place.region == "" {
				// The history has the events of the deployment in all regions.
				want = slices.Insert(slices.Clone(ofHere), 4, "fault region-3: kill the agent of region-3", "dep_a region-3: instance ins_o0 is ready")
			}
			s.violated(t, c.kind, want...)
		})
	}
}

func TestChecker_FindsAnInstanceInTwoRegions(t *testing.T) {
	s := setup(t)
	s.sight.ready[there.region][there.deployment] = []string{"ins_1", "ins_9"}
	why := s.compareContent(s.books, s.sight)
	require.NotNil(t, why)
	require.Equal(t, "instances run twice", why.kind)
}

func TestChecker_FindsAHoleInAFeed(t *testing.T) {
	s := setup(t)
	s.history.deleteEvents()
	s.noise(1)
	s.books.holes = []string{here.region}
	s.recordUnsettled(61*time.Second, patient, s.compareContent(s.books, s.sight))
	s.violated(t, "a feed has a hole", "dep_p region-1: the agent removes it", "fault: kill mariadb")
}

func TestChecker_FindsLateSettling(t *testing.T) {
	s := setup(t)
	s.noise(1)
	s.books.rows[0].generation = 4
	p := patience{converge: 10 * time.Second, end: time.Minute}
	why := s.compareContent(s.books, s.sight)
	for _, after := range []time.Duration{9 * time.Second, 11 * time.Second, 12 * time.Second} {
		late, stuck := s.recordUnsettled(after, p, why)
		require.Equal(t, after > p.converge, late)
		require.False(t, stuck)
	}
	s.violated(t, "not settled in time", ofHere...)
}

func TestChecker_HistoryBeginsWhenAllIsInOrder(t *testing.T) {
	s := setup(t)
	s.noise(1)
	s.history.deleteEvents()
	s.onApplied(here.region, here.deployment, 1, 2)
	s.checkClaims(s.claims())
	s.violated(t, "generation went back", "dep_a region-1: the agent applies generation 2 of epoch 1")
}

func TestChecker_LongHistoryKeepsItsEnd(t *testing.T) {
	s := setup(t)
	for n := range maxEvents + 10 {
		s.history.add(event{region: here.region, deployment: here.deployment, text: fmt.Sprint("event ", n)})
	}
	require.LessOrEqual(t, len(s.history.events), maxEvents)
	lines := s.history.eventsAbout("loose-0", here)
	require.Len(t, lines, maxLines+1)
	require.Contains(t, lines[0], "before")
	require.Contains(t, lines[1], fmt.Sprint("event ", maxEvents+10-maxLines))
	require.Contains(t, lines[maxLines], fmt.Sprint("event ", maxEvents+9))
}

func TestChecker_ComparesModelsWithTheirServers(t *testing.T) {
	s := setup(t)
	p := place{here.region, "dep_m"}
	s.books.deployments[p.deployment] = true
	s.books.rows = append(s.books.rows, row{
		place: p, app: modelName(0), status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED, replicas: 2, generation: 3, appliedGeneration: 3, readyReplicas: 2, count: 2,
	}, row{place: place{here.region, "dep_l"}, app: modelName(0), status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED, replicas: 1})
	s.books.replicas = []modelReplica{{"ins_m1", modelName(0), "ins_s1", p}, {"ins_m2", modelName(0), "ins_s2", p}}
	hold := func(servers ...string) {
		s.sight.models = map[string]map[string][]string{here.region: {modelName(0): servers}}
	}
	hold("ins_s1", "ins_s2")
	require.Nil(t, s.compareContent(s.books, s.sight))
	for _, servers := range [][]string{{}, {"ins_s1"}, {"ins_s1", "ins_s2", "ins_s3"}, {"ins_s1", "ins_s3"}} {
		hold(servers...)
		d := s.compareContent(s.books, s.sight)
		require.NotNil(t, d, servers)
		require.Equal(t, modelMissed, d.kind)
	}
	hold("ins_s1", "ins_s2")
	s.books.rows[len(s.books.rows)-2].readyReplicas = 1
	require.Equal(t, "a report was missed", s.compareContent(s.books, s.sight).kind)
}
