package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	"github.com/windlass-run/windlass/pkg/backoff"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// The app servers-0 has servers, and each model-N is a model that they load. All are in the regions that have gateways, and
// are never deleted. A server holds all models at once, but only one version of each.
const (
	serversName    = "servers-0"
	serverReplicas = 4
	serverMemory   = 100
	modelApps      = 3
	// mostModel is the most replicas of a model. Servers are left for further versions.
	mostModel = serverReplicas - 2
	// mostMemory is the most memory of a model, so that all models fit on one server.
	mostMemory = serverMemory / modelApps
	// manyRequests is how many requests for a model may wait in a gateway.
	manyRequests = 10_000

	modelMissed     = "a model was missed"
	unloadedInUse   = "a model was unloaded with a request"
	unknownAtServer = "a server was asked for what is no model"
)

func modelName(i int) string { return fmt.Sprint("model-", i) }

// isModel reports whether an app is a model.
func isModel(app string) bool { return strings.HasPrefix(app, "model-") }

// modelPath is the path at which clients call a model.
func modelPath(app string) string { return "/v2/models/" + app + "/infer" }

// modelSpec makes the spec one of a model, or of servers. Versions of a model differ in their memory.
func modelSpec(app string, spec *windlassv1.DeploymentSpec, rnd *rand.Rand) *windlassv1.DeploymentSpec {
	if app == serversName {
		n := int32(serverReplicas)
		spec.Replicas = &n
		spec.Models = &windlassv1.ModelServer{Protocol: windlassv1.ModelServer_PROTOCOL_V2, MemoryMib: serverMemory}
		return spec
	}
	n := 1 + rnd.Int32N(mostModel)
	queue := int32(manyRequests)
	return &windlassv1.DeploymentSpec{
		Model: &windlassv1.LoadedModel{Server: serversName, MemoryMib: 1 + rnd.Int64N(mostMemory)}, Regions: spec.Regions, Replicas: &n,
		// A request may wait as long as the faults of a round and the settling after them last.
		Routing: &windlassv1.RoutingPolicy{QueueWait: durationpb.New(longestWait), QueueSize: &queue},
	}
}

// modelRollout returns how a version of a model or of servers replaces another one. Models have a replica more for a while, or
// are unloaded before the load. All servers are replaced at once, because their models move with each of them.
func modelRollout(app string, rnd *rand.Rand) *windlassv1.RolloutPolicy {
	switch {
	case app == serversName:
		return testbed.AtOnce()
	case rnd.IntN(2) == 0:
		return &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_RECREATE}
	}
	return nil
}

// modelServers are the servers of models that run, in all regions.
type modelServers struct {
	requests *requests

	mu      sync.Mutex
	servers map[string]*modelServer // by instance
	// deployments has the deployments of servers that had an instance, by region.
	deployments map[string]map[string]bool
	// changing counts the loads and unloads that run, and failed is when the last load failed, by region.
	changing map[string]int
	failed   map[string]time.Time

	loads, unloads, failedLoads int
}

// modelServer is a server of models by the Open Inference Protocol. It is an instance of servers-0.
type modelServer struct {
	all        *modelServers
	region, id string

	mu  sync.Mutex
	rnd *rand.Rand
	// states has the state of each model, as in an index of models. A missing model is not loaded.
	states map[string]string
	// changes are locked by the load or unload of each model.
	changes map[string]*sync.Mutex
	// inUse is how many requests of clients each model has now.
	inUse map[string]int
}

// The states of models, as the Open Inference Protocol names them.
const (
	loading   = "LOADING"
	loaded    = "READY"
	unloading = "UNLOADING"
)

func newModelServers(q *requests) *modelServers {
	return &modelServers{
		requests: q, servers: map[string]*modelServer{}, deployments: map[string]map[string]bool{}, changing: map[string]int{}, failed: map[string]time.Time{},
	}
}

// add adds the server of an instance, which holds no models.
func (m *modelServers) add(region, id string) *modelServer {
	s := &modelServer{
		all: m, region: region, id: id, rnd: rand.New(rand.NewPCG(rand.Uint64(), 0)),
		states: map[string]string{}, changes: map[string]*sync.Mutex{}, inUse: map[string]int{},
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.servers[id] = s
	return s
}

// end removes the server of an instance that has ended.
func (m *modelServers) end(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.servers, id)
}

// noteReady records that an instance of a deployment is ready.
func (m *modelServers) noteReady(region, deployment, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.servers[id] == nil {
		return
	}
	if m.deployments[region] == nil {
		m.deployments[region] = map[string]bool{}
	}
	m.deployments[region][deployment] = true
}

// deploymentsIn returns the deployments of servers in a region, some of which may have ended.
func (m *modelServers) deploymentsIn(region string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.deployments[region]))
}

// held returns the servers that hold each model, by region and model.
func (m *modelServers) held() map[string]map[string][]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]map[string][]string{}
	for id, s := range m.servers {
		if out[s.region] == nil {
			out[s.region] = map[string][]string{}
		}
		s.mu.Lock()
		for model := range s.states {
			out[s.region][model] = append(out[s.region][model], id)
		}
		s.mu.Unlock()
	}
	return out
}

// ServeHTTP answers the agent, gateways and clients.
func (s *modelServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rest, isRepository := strings.CutPrefix(r.URL.Path, "/v2/repository/")
	switch {
	case rest == "index":
		s.index(w)
	case isRepository:
		model, act, _ := strings.Cut(strings.TrimPrefix(rest, "models/"), "/")
		s.change(w, r, model, act == "load")
	case strings.HasSuffix(r.URL.Path, "/ready"):
		s.ready(w, strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/v2/models/"), "/ready"))
	case strings.HasPrefix(r.URL.Path, "/v2/models/"):
		s.infer(w, r, strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/v2/models/"), "/infer"))
	}
}

func (s *modelServer) index(w http.ResponseWriter) {
	type entry struct {
		Name  string `json:"name"`
		State string `json:"state"`
	}
	s.mu.Lock()
	out := []entry{}
	for model, state := range s.states {
		out = append(out, entry{model, state})
	}
	s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(out) // the agent asks again
}

func (s *modelServer) ready(w http.ResponseWriter, model string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.states[model] != loaded {
		w.WriteHeader(http.StatusNotFound)
	}
}

// change loads or unloads a model. Some loads fail. A load goes on when its caller has gone, as in real servers.
func (s *modelServer) change(w http.ResponseWriter, r *http.Request, model string, load bool) {
	if !isModel(model) || r.Method != http.MethodPost {
		s.all.requests.checker.recordViolationf(unknownAtServer, serversName, place{region: s.region}, "%s %s", r.Method, r.URL.Path)
	}
	s.mu.Lock()
	turn := s.changes[model]
	if turn == nil {
		turn = &sync.Mutex{}
		s.changes[model] = turn
	}
	s.mu.Unlock()
	turn.Lock()
	defer turn.Unlock()

	s.mu.Lock()
	was, used := s.states[model], s.inUse[model]
	takes, fails := randomBetween(s.rnd, 10*time.Millisecond, 300*time.Millisecond), load && s.rnd.IntN(20) == 0
	if was == "" == load {
		s.states[model] = map[bool]string{true: loading, false: unloading}[load]
	}
	s.mu.Unlock()
	if was == "" != load {
		return // nothing to do
	}
	if !load && used > 0 {
		s.all.requests.violatedUnlessKilled(appRegion{model, s.region}, unloadedInUse, fmt.Sprintf("server %s had %d requests", s.id, used))
	}
	s.all.begin(s.region)
	time.Sleep(takes)
	s.mu.Lock()
	if load && !fails {
		s.states[model] = loaded
	} else {
		delete(s.states, model)
	}
	s.mu.Unlock()
	s.all.done(s.region, load, fails)
	if fails {
		http.Error(w, `{"error": "no memory"}`, http.StatusBadRequest)
	}
}

// begin records that a load or an unload begins, and done that it has ended.
func (m *modelServers) begin(region string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changing[region]++
}

func (m *modelServers) done(region string, load, failed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changing[region]--
	switch {
	case failed:
		m.failedLoads++
		m.failed[region] = time.Now()
	case load:
		m.loads++
	default:
		m.unloads++
	}
}

// blames is longer than an agent blames the end of a server on a load that failed before.
const blames = 6 * time.Second

// rests reports whether the end of a server would be blamed on no model of the region.
func (m *modelServers) rests(region string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changing[region] == 0 && time.Since(m.failed[region]) > blames
}

// counts returns how many loads and unloads servers did, and how many loads they refused.
func (m *modelServers) counts() (loads, unloads, failed int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.loads, m.unloads, m.failedLoads
}

// infer answers a request of a client.
func (s *modelServer) infer(w http.ResponseWriter, r *http.Request, model string) {
	s.mu.Lock()
	has := s.states[model] == loaded
	if has {
		s.inUse[model]++
	}
	s.mu.Unlock()
	if !has {
		http.Error(w, `{"error": "the model is not loaded"}`, http.StatusNotFound)
		return
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.inUse[model]--
	}()
	answerSlowly(w, r, s.id)
}

// agreeModel compares the row of a model with what its region reported.
func (r row) agreeModel() *disagreement {
	if r.status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED &&
		(r.appliedGeneration != r.generation || r.readyReplicas != r.replicas || r.count != r.replicas) {
		return &disagreement{"a report was missed", r.app, r.place, fmt.Sprintf(
			"applied is %d of %d, ready %d of %d, counted %d", r.appliedGeneration, r.generation, r.readyReplicas, r.replicas, r.count)}
	}
	return nil
}

// agreeModels compares the models that servers hold with the replicas that are wanted, and with the rows of instances.
func agreeModels(b books, s sight) *disagreement {
	wanted := map[appRegion]int{}
	for _, r := range b.rows {
		switch {
		case !isModel(r.app):
		case r.status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED:
			wanted[appRegion{r.app, r.region}] += r.replicas
		default:
			wanted[appRegion{r.app, r.region}] += 0
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(wanted), appRegion.compare) {
		if on := s.models[at.region][at.app]; len(on) != wanted[at] {
			return &disagreement{modelMissed, at.app, place{region: at.region}, fmt.Sprintf("%d servers hold it, wanted are %d: %v", len(on), wanted[at], on)}
		}
	}
	for _, r := range b.replicas {
		if !slices.Contains(s.models[r.place.region][r.app], r.server) {
			return &disagreement{modelMissed, r.app, r.place, fmt.Sprintf("replica %s lives in the database, and server %s does not hold the model", r.id, r.server)}
		}
	}
	return nil
}

// crashServer crashes one server of models in a region. It waits for a moment without a load, because an agent loads a model
// no more after two servers have ended meanwhile.
func (s *injector) crashServer(ctx context.Context, _ *rand.Rand, region string) (func(context.Context) error, time.Duration, error) {
	m, models := s.w.Fleet.Member(region), s.gateways.requests.models
	for waited := time.Duration(0); !models.rests(region); waited += restEvery {
		if waited > restWithin || backoff.Sleep(ctx, restEvery) != nil {
			return nil, 0, nil //nolint:nilerr // the faults end with ctx
		}
	}
	for _, deployment := range models.deploymentsIn(region) {
		if m.Runtime.Crash(deployment) == nil {
			s.history.add(event{region: region, deployment: deployment, part: "executor", text: "a server of models crashes and another one starts"})
			break
		}
	}
	return nil, 0, nil
}

// crashServer waits for restWithin at most, and looks every restEvery.
const (
	restWithin = 3 * time.Second
	restEvery  = 5 * time.Millisecond
)
