package memory

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// pair is a primary key of two columns.
type pair struct{ a, b string }

// pairOf is the key of a deployment, or of an app's route, in a region.
func pairOf(id, regionID string) pair { return pair{id, regionID} }

// pairsOf returns the keys of the ids in their regions, sorted.
func pairsOf(byRegion map[string][]string) []pair {
	var out []pair
	for region, ids := range byRegion {
		for _, id := range sortDistinct(ids) {
			out = append(out, pairOf(id, region))
		}
	}
	slices.SortFunc(out, compareKeys[pair])
	return out
}

// secret is the row of a secret's name. Its values are in secretVersion.
type secret struct {
	workspaceID          string
	name                 pair // environment, name
	version              int32
	createdAt, updatedAt int64
}

type secretVersion struct {
	key        versionKey
	ciphertext []byte
	createdAt  int64
}

// secretFloor is the highest version that a deleted secret of the environment had.
type secretFloor struct {
	environmentID string
	version       int32
}

type versionKey struct {
	name    pair
	version int32
}

type grant struct {
	key pair // region, workspace
	at  int64
}

// head is a region's head, and the revision at which its epoch began.
type head struct {
	model.Head
	baseRevision int64
	baseChain    []byte
}

// log is a region's feed, by revision. Committed changes never change in place. An append may use the same array
// as older values of the row, beyond their ends.
type log []model.Change

// peerKey is a key that a process read at its start.
type peerKey struct {
	peerID   string
	keyID    uint32
	seals    bool
	lastSeen int64
}

// key returns a key that sorts by the number.
func (k peerKey) key() pair { return pair{k.peerID, fmt.Sprintf("%010d", k.keyID)} }

// regionStream is the process that had the last stream of a region's agent.
type regionStream struct{ regionID, peerID string }

// logRow has the id of its region, because an empty log does not.
type logRow struct {
	region  string
	changes log
}

// plainCopy copies a value that has no pointers.
func plainCopy[V any](v V) V { return v }

// All tables of the store. Each table is declared once, and there is no other list of them.
var (
	workspaceTable = declareTable(schema[string, model.Workspace]{
		name: "workspace", copy: plainCopy[model.Workspace],
		key:    func(w model.Workspace) string { return w.ID },
		unique: []func(model.Workspace) string{func(w model.Workspace) string { return w.Name }},
	})
	apiKeyTable = declareTable(schema[string, model.APIKey]{
		name: "API key",
		key:  func(k model.APIKey) string { return k.ID },
		copy: func(k model.APIKey) model.APIKey { k.Hash = bytes.Clone(k.Hash); return k },
		unique: []func(model.APIKey) string{
			func(k model.APIKey) string { return string(k.Hash) },
			func(k model.APIKey) string { return k.WorkspaceID + "\x00" + k.Name },
		},
	})
	projectTable = declareTable(schema[string, model.Project]{
		name: "project", copy: plainCopy[model.Project],
		key:    func(p model.Project) string { return p.ID },
		unique: []func(model.Project) string{func(p model.Project) string { return p.WorkspaceID + "\x00" + p.Name }},
	})
	environmentTable = declareTable(schema[string, model.Environment]{
		name: "environment",
		key:  func(e model.Environment) string { return e.ID },
		copy: func(e model.Environment) model.Environment { e.Variables = maps.Clone(e.Variables); return e },
		unique: []func(model.Environment) string{
			func(e model.Environment) string { return e.ProjectID + "\x00" + e.Name },
		},
	})
	secretTable = declareTable(schema[pair, secret]{
		name: "secret", copy: plainCopy[secret],
		key: func(s secret) pair { return s.name },
	})
	secretVersionTable = declareTable(schema[versionKey, secretVersion]{
		name: "secret version",
		key:  func(v secretVersion) versionKey { return v.key },
		copy: func(v secretVersion) secretVersion { v.ciphertext = bytes.Clone(v.ciphertext); return v },
	})
	secretFloorTable = declareTable(schema[string, secretFloor]{
		name: "secret floor", copy: plainCopy[secretFloor],
		key: func(f secretFloor) string { return f.environmentID },
	})
	appTable = declareTable(schema[string, model.App]{
		name: "app", copy: plainCopy[model.App],
		key: func(a model.App) string { return a.ID },
		unique: []func(model.App) string{func(a model.App) string {
			if a.DeletedAt != 0 {
				return ""
			}
			return a.EnvironmentID + "\x00" + a.Name
		}},
	})
	deploymentTable = declareTable(schema[string, model.Deployment]{
		name: "deployment",
		key:  func(d model.Deployment) string { return d.ID },
		copy: func(d model.Deployment) model.Deployment {
			d.Spec, d.SpecHash, d.MadeAs = proto.CloneOf(d.Spec), bytes.Clone(d.SpecHash), bytes.Clone(d.MadeAs)
			return d
		},
		unique: []func(model.Deployment) string{
			func(d model.Deployment) string { return versionName(d.AppID, d.Version) },
		},
	})
	rolloutTable = declareTable(schema[string, model.Rollout]{
		name: "rollout", copy: plainCopy[model.Rollout],
		key: func(r model.Rollout) string { return r.ID },
	})
	wakeTable = declareTable(schema[string, model.Wake]{
		name: "wake", copy: plainCopy[model.Wake],
		key: func(w model.Wake) string { return w.AppID },
	})
	topologyTable = declareTable(schema[pair, model.Topology]{
		name: "topology", copy: plainCopy[model.Topology],
		key: func(t model.Topology) pair { return pairOf(t.DeploymentID, t.RegionID) },
	})
	routeTable = declareTable(schema[pair, model.Route]{
		name: "route",
		key:  func(r model.Route) pair { return pairOf(r.AppID, r.RegionID) },
		copy: func(r model.Route) model.Route {
			r.Hosts, r.Policy, r.Keys = slices.Clone(r.Hosts), bytes.Clone(r.Policy), bytes.Clone(r.Keys)
			return r
		},
	})
	observedTable = declareTable(schema[pair, model.Observed]{
		name: "observed", copy: plainCopy[model.Observed],
		key: func(o model.Observed) pair { return pairOf(o.DeploymentID, o.RegionID) },
	})
	routeObservedTable = declareTable(schema[pair, model.RouteObserved]{
		name: "observed route", copy: plainCopy[model.RouteObserved],
		key: func(o model.RouteObserved) pair { return pairOf(o.AppID, o.RegionID) },
	})
	instanceTable = declareTable(schema[string, model.Instance]{
		name: "instance",
		key:  func(i model.Instance) string { return i.ID },
		copy: func(i model.Instance) model.Instance { i.GPUs = slices.Clone(i.GPUs); return i },
	})
	regionTable = declareTable(schema[string, model.Region]{
		name: "region",
		key:  func(r model.Region) string { return r.ID },
		copy: func(r model.Region) model.Region {
			r.Labels, r.AgentFeatures, r.Capacity = maps.Clone(r.Labels), slices.Clone(r.AgentFeatures), bytes.Clone(r.Capacity)
			return r
		},
		unique: []func(model.Region) string{func(r model.Region) string { return r.WorkspaceID + "\x00" + r.Name }},
	})
	grantTable = declareTable(schema[pair, grant]{
		name: "grant", copy: plainCopy[grant],
		key: func(g grant) pair { return g.key },
	})
	joinTokenTable = declareTable(schema[string, model.JoinToken]{
		name:   "join token",
		key:    func(t model.JoinToken) string { return t.ID },
		copy:   func(t model.JoinToken) model.JoinToken { t.Hash = bytes.Clone(t.Hash); return t },
		unique: []func(model.JoinToken) string{func(t model.JoinToken) string { return string(t.Hash) }},
	})
	quarantineTable = declareTable(schema[pair, model.Quarantined]{
		name: "quarantined workload", copy: plainCopy[model.Quarantined],
		key: func(q model.Quarantined) pair { return pair{q.RegionID, q.Key} },
	})
	headTable = declareTable(schema[string, head]{
		name: "head",
		key:  func(h head) string { return h.RegionID },
		copy: func(h head) head { h.Chain, h.baseChain = bytes.Clone(h.Chain), bytes.Clone(h.baseChain); return h },
	})
	logTable = declareTable(schema[string, logRow]{
		name: "feed", copy: plainCopy[logRow], // readers copy the changes that they return
		key: func(l logRow) string { return l.region },
	})
	historyTable = declareTable(schema[string, model.History]{
		name: "history entry", copy: plainCopy[model.History],
		key: func(h model.History) string { return h.ID },
	})
	auditTable = declareTable(schema[string, model.Audit]{
		name: "audit entry", copy: plainCopy[model.Audit],
		key: func(a model.Audit) string { return a.ID },
	})
	idempotencyTable = declareTable(schema[pair, model.Idempotency]{
		name: "idempotency record",
		key:  func(i model.Idempotency) pair { return pair{i.WorkspaceID, i.Key} },
		copy: func(i model.Idempotency) model.Idempotency {
			i.RequestHash, i.Response = bytes.Clone(i.RequestHash), bytes.Clone(i.Response)
			return i
		},
	})
	scalingTable = declareTable(schema[string, model.Scaling]{
		name: "scaling of app", copy: func(s model.Scaling) model.Scaling { return s.Clone() },
		key: func(s model.Scaling) string { return s.AppID },
	})
	scalingDecisionTable = declareTable(schema[pair, model.ScalingDecision]{
		name: "scaling decision", copy: model.ScalingDecision.Clone,
		key: func(d model.ScalingDecision) pair { return pair{d.AppID, d.RegionID} },
	})
	scalingLoadTable = declareTable(schema[pair, model.LoadChunk]{
		name: "scaling load", copy: model.LoadChunk.Clone,
		key: func(c model.LoadChunk) pair {
			return pair{c.AppID, fmt.Sprintf("%s/%s/%020d", c.RegionID, c.Role, c.BeganAt)}
		},
	})
	protectionTable = declareTable(schema[pair, model.Protection]{
		name: "protection", copy: plainCopy[model.Protection],
		key: keyOfProtection,
	})
	endpointTable = declareTable(schema[string, model.NotificationEndpoint]{
		name: "notification endpoint", copy: plainCopy[model.NotificationEndpoint],
		key:    func(e model.NotificationEndpoint) string { return e.ID },
		unique: []func(model.NotificationEndpoint) string{func(e model.NotificationEndpoint) string { return e.WorkspaceID + "\x00" + e.Name }},
	})
	deliveryTable = declareTable(schema[pair, model.Delivery]{
		name: "notification", copy: plainCopy[model.Delivery],
		key: keyOfDelivery,
	})
	peerTable = declareTable(schema[string, model.Peer]{
		name: "peer", copy: plainCopy[model.Peer],
		key: func(p model.Peer) string { return p.ID },
	})
	peerKeyTable = declareTable(schema[pair, peerKey]{
		name: "key of peer", copy: plainCopy[peerKey],
		key: peerKey.key,
	})
	streamTable = declareTable(schema[string, regionStream]{
		name: "stream of region", copy: plainCopy[regionStream],
		key: func(s regionStream) string { return s.regionID },
	})
	tierTable = declareTable(schema[string, model.Tier]{
		name: "tier", copy: plainCopy[model.Tier],
		key: func(t model.Tier) string { return t.Name },
	})
	featuresTable = declareTable(schema[string, model.WorkspaceFeatures]{
		name: "features", copy: plainCopy[model.WorkspaceFeatures],
		key: func(f model.WorkspaceFeatures) string { return f.WorkspaceID },
	})
	presetTable = declareTable(schema[versionKey, model.Preset]{
		name: "preset", copy: model.Preset.Clone, key: keyOfPreset,
	})
	presetFloorTable = declareTable(schema[string, presetFloor]{
		name: "preset floor", copy: plainCopy[presetFloor],
		key: func(f presetFloor) string { return f.workspaceID },
	})
	limitsTable = declareTable(schema[string, model.Admission]{
		name: "limits of workspace", copy: plainCopy[model.Admission],
		key: func(a model.Admission) string { return a.WorkspaceID },
	})
	startsTable = declareTable(schema[string, starts]{
		name: "starts of workspace", copy: plainCopy[starts],
		key: func(s starts) string { return s.workspaceID },
	})
	claimTable = declareTable(schema[string, model.Claim]{
		name: "claim", copy: plainCopy[model.Claim],
		key: func(c model.Claim) string { return c.AppID },
	})
	rolloutStateTable = declareTable(schema[string, model.RolloutState]{
		name: "rollout state of app", copy: model.RolloutState.Clone,
		key: func(s model.RolloutState) string { return s.AppID },
	})
	freezeTable = declareTable(schema[pair, model.Freeze]{
		name: "freeze", copy: model.Freeze.Clone,
		key: func(f model.Freeze) pair { return pair{f.WorkspaceID, f.Name} },
	})
	browserTable = declareTable(schema[string, model.BrowserSession]{
		name: "browser session",
		key:  func(s model.BrowserSession) string { return string(s.Hash) },
		copy: func(s model.BrowserSession) model.BrowserSession {
			s.Hash, s.KeyHash = bytes.Clone(s.Hash), bytes.Clone(s.KeyHash)
			return s
		},
	})
	memberTable = declareTable(schema[string, model.Member]{
		name: "member", copy: model.Member.Clone,
		key: func(m model.Member) string { return m.ID },
		unique: []func(model.Member) string{
			func(m model.Member) string { return string(m.Hash) },
			func(m model.Member) string { return m.WorkspaceID + "\x00" + string(m.Identity()) },
		},
	})
	signInRuleTable = declareTable(schema[pair, model.SignInRule]{
		name: "sign-in rule", copy: model.SignInRule.Clone,
		key: func(r model.SignInRule) pair { return pair{r.WorkspaceID, r.Name} },
	})
	usedSignInTable = declareTable(schema[string, model.UsedSignIn]{
		name: "used sign-in", copy: func(u model.UsedSignIn) model.UsedSignIn { u.Hash = bytes.Clone(u.Hash); return u },
		key: func(u model.UsedSignIn) string { return string(u.Hash) },
	})
	pinTable = declareTable(schema[pair, model.Pin]{
		name: "pin", copy: model.Pin.Clone,
		key: func(p model.Pin) pair { return pair{p.AppID, p.DeploymentID} },
	})
	appKeyTable = declareTable(schema[pair, model.AppKey]{
		name: "app key", copy: func(k model.AppKey) model.AppKey {
			k.Hash = bytes.Clone(k.Hash)
			return k
		},
		key: func(k model.AppKey) pair { return pair{k.AppID, k.Name} },
	})
	domainTable = declareTable(schema[pair, model.Domain]{
		name: "domain", copy: plainCopy[model.Domain],
		key: func(d model.Domain) pair { return pair{d.AppID, d.Name} },
		unique: []func(model.Domain) string{func(d model.Domain) string {
			if d.VerifiedAt == 0 {
				return ""
			}
			return d.Name
		}},
	})
)

func versionName(appID string, version int32) string {
	return appID + "\x00" + strconv.Itoa(int(version))
}
