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

// place is the key of a deployment, or of an app's route, in a region.
func place(id, regionID string) pair { return pair{id, regionID} }

// places returns the keys of the ids in their regions, sorted.
func places(byRegion map[string][]string) []pair {
	var out []pair
	for region, ids := range byRegion {
		for _, id := range distinct(ids) {
			out = append(out, place(id, region))
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

// plain copies a value that has no pointers.
func plain[V any](v V) V { return v }

// All tables of the store. Each table is declared once, and there is no other list of them.
var (
	workspaceTable = declare(schema[string, model.Workspace]{
		name: "workspace", copy: plain[model.Workspace],
		key:    func(w model.Workspace) string { return w.ID },
		unique: []func(model.Workspace) string{func(w model.Workspace) string { return w.Name }},
	})
	apiKeyTable = declare(schema[string, model.APIKey]{
		name: "API key",
		key:  func(k model.APIKey) string { return k.ID },
		copy: func(k model.APIKey) model.APIKey { k.Hash = bytes.Clone(k.Hash); return k },
		unique: []func(model.APIKey) string{
			func(k model.APIKey) string { return string(k.Hash) },
			func(k model.APIKey) string { return k.WorkspaceID + "\x00" + k.Name },
		},
	})
	projectTable = declare(schema[string, model.Project]{
		name: "project", copy: plain[model.Project],
		key:    func(p model.Project) string { return p.ID },
		unique: []func(model.Project) string{func(p model.Project) string { return p.WorkspaceID + "\x00" + p.Name }},
	})
	environmentTable = declare(schema[string, model.Environment]{
		name: "environment",
		key:  func(e model.Environment) string { return e.ID },
		copy: func(e model.Environment) model.Environment { e.Variables = maps.Clone(e.Variables); return e },
		unique: []func(model.Environment) string{
			func(e model.Environment) string { return e.ProjectID + "\x00" + e.Name },
		},
	})
	secretTable = declare(schema[pair, secret]{
		name: "secret", copy: plain[secret],
		key: func(s secret) pair { return s.name },
	})
	secretVersionTable = declare(schema[versionKey, secretVersion]{
		name: "secret version",
		key:  func(v secretVersion) versionKey { return v.key },
		copy: func(v secretVersion) secretVersion { v.ciphertext = bytes.Clone(v.ciphertext); return v },
	})
	secretFloorTable = declare(schema[string, secretFloor]{
		name: "secret floor", copy: plain[secretFloor],
		key: func(f secretFloor) string { return f.environmentID },
	})
	appTable = declare(schema[string, model.App]{
		name: "app", copy: plain[model.App],
		key: func(a model.App) string { return a.ID },
		unique: []func(model.App) string{func(a model.App) string {
			if a.DeletedAt != 0 {
				return ""
			}
			return a.EnvironmentID + "\x00" + a.Name
		}},
	})
	deploymentTable = declare(schema[string, model.Deployment]{
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
	rolloutTable = declare(schema[string, model.Rollout]{
		name: "rollout", copy: plain[model.Rollout],
		key: func(r model.Rollout) string { return r.ID },
	})
	wakeTable = declare(schema[string, model.Wake]{
		name: "wake", copy: plain[model.Wake],
		key: func(w model.Wake) string { return w.AppID },
	})
	topologyTable = declare(schema[pair, model.Topology]{
		name: "topology", copy: plain[model.Topology],
		key: func(t model.Topology) pair { return place(t.DeploymentID, t.RegionID) },
	})
	routeTable = declare(schema[pair, model.Route]{
		name: "route",
		key:  func(r model.Route) pair { return place(r.AppID, r.RegionID) },
		copy: func(r model.Route) model.Route {
			r.Hosts, r.Policy, r.Keys = slices.Clone(r.Hosts), bytes.Clone(r.Policy), bytes.Clone(r.Keys)
			return r
		},
	})
	observedTable = declare(schema[pair, model.Observed]{
		name: "observed", copy: plain[model.Observed],
		key: func(o model.Observed) pair { return place(o.DeploymentID, o.RegionID) },
	})
	routeObservedTable = declare(schema[pair, model.RouteObserved]{
		name: "observed route", copy: plain[model.RouteObserved],
		key: func(o model.RouteObserved) pair { return place(o.AppID, o.RegionID) },
	})
	instanceTable = declare(schema[string, model.Instance]{
		name: "instance",
		key:  func(i model.Instance) string { return i.ID },
		copy: func(i model.Instance) model.Instance { i.GPUs = slices.Clone(i.GPUs); return i },
	})
	regionTable = declare(schema[string, model.Region]{
		name: "region",
		key:  func(r model.Region) string { return r.ID },
		copy: func(r model.Region) model.Region {
			r.Labels, r.AgentFeatures, r.Capacity = maps.Clone(r.Labels), slices.Clone(r.AgentFeatures), bytes.Clone(r.Capacity)
			return r
		},
		unique: []func(model.Region) string{func(r model.Region) string { return r.WorkspaceID + "\x00" + r.Name }},
	})
	grantTable = declare(schema[pair, grant]{
		name: "grant", copy: plain[grant],
		key: func(g grant) pair { return g.key },
	})
	joinTokenTable = declare(schema[string, model.JoinToken]{
		name:   "join token",
		key:    func(t model.JoinToken) string { return t.ID },
		copy:   func(t model.JoinToken) model.JoinToken { t.Hash = bytes.Clone(t.Hash); return t },
		unique: []func(model.JoinToken) string{func(t model.JoinToken) string { return string(t.Hash) }},
	})
	quarantineTable = declare(schema[pair, model.Quarantined]{
		name: "quarantined workload", copy: plain[model.Quarantined],
		key: func(q model.Quarantined) pair { return pair{q.RegionID, q.Key} },
	})
	headTable = declare(schema[string, head]{
		name: "head",
		key:  func(h head) string { return h.RegionID },
		copy: func(h head) head { h.Chain, h.baseChain = bytes.Clone(h.Chain), bytes.Clone(h.baseChain); return h },
	})
	logTable = declare(schema[string, logRow]{
		name: "feed", copy: plain[logRow], // readers copy the changes that they return
		key: func(l logRow) string { return l.region },
	})
	historyTable = declare(schema[string, model.History]{
		name: "history entry", copy: plain[model.History],
		key: func(h model.History) string { return h.ID },
	})
	auditTable = declare(schema[string, model.Audit]{
		name: "audit entry", copy: plain[model.Audit],
		key: func(a model.Audit) string { return a.ID },
	})
	idempotencyTable = declare(schema[pair, model.Idempotency]{
		name: "idempotency record",
		key:  func(i model.Idempotency) pair { return pair{i.WorkspaceID, i.Key} },
		copy: func(i model.Idempotency) model.Idempotency {
			i.RequestHash, i.Response = bytes.Clone(i.RequestHash), bytes.Clone(i.Response)
			return i
		},
	})
	scalingTable = declare(schema[string, model.Scaling]{
		name: "scaling of app", copy: func(s model.Scaling) model.Scaling { return s.Clone() },
		key: func(s model.Scaling) string { return s.AppID },
	})
	scalingDecisionTable = declare(schema[pair, model.ScalingDecision]{
		name: "scaling decision", copy: model.ScalingDecision.Clone,
		key: func(d model.ScalingDecision) pair { return pair{d.AppID, d.RegionID} },
	})
	scalingLoadTable = declare(schema[pair, model.LoadChunk]{
		name: "scaling load", copy: model.LoadChunk.Clone,
		key: func(c model.LoadChunk) pair {
			return pair{c.AppID, fmt.Sprintf("%s/%s/%020d", c.RegionID, c.Role, c.BeganAt)}
		},
	})
	protectionTable = declare(schema[pair, model.Protection]{
		name: "protection", copy: plain[model.Protection],
		key: keyOfProtection,
	})
	endpointTable = declare(schema[string, model.NotificationEndpoint]{
		name: "notification endpoint", copy: plain[model.NotificationEndpoint],
		key:    func(e model.NotificationEndpoint) string { return e.ID },
		unique: []func(model.NotificationEndpoint) string{func(e model.NotificationEndpoint) string { return e.WorkspaceID + "\x00" + e.Name }},
	})
	deliveryTable = declare(schema[pair, model.Delivery]{
		name: "notification", copy: plain[model.Delivery],
		key: keyOfDelivery,
	})
	peerTable = declare(schema[string, model.Peer]{
		name: "peer", copy: plain[model.Peer],
		key: func(p model.Peer) string { return p.ID },
	})
	peerKeyTable = declare(schema[pair, peerKey]{
		name: "key of peer", copy: plain[peerKey],
		key: peerKey.key,
	})
	streamTable = declare(schema[string, regionStream]{
		name: "stream of region", copy: plain[regionStream],
		key: func(s regionStream) string { return s.regionID },
	})
	tierTable = declare(schema[string, model.Tier]{
		name: "tier", copy: plain[model.Tier],
		key: func(t model.Tier) string { return t.Name },
	})
	featuresTable = declare(schema[string, model.WorkspaceFeatures]{
		name: "features", copy: plain[model.WorkspaceFeatures],
		key: func(f model.WorkspaceFeatures) string { return f.WorkspaceID },
	})
	presetTable = declare(schema[versionKey, model.Preset]{
		name: "preset", copy: model.Preset.Clone, key: keyOfPreset,
	})
	presetFloorTable = declare(schema[string, presetFloor]{
		name: "preset floor", copy: plain[presetFloor],
		key: func(f presetFloor) string { return f.workspaceID },
	})
	limitsTable = declare(schema[string, model.Admission]{
		name: "limits of workspace", copy: plain[model.Admission],
		key: func(a model.Admission) string { return a.WorkspaceID },
	})
	startsTable = declare(schema[string, starts]{
		name: "starts of workspace", copy: plain[starts],
		key: func(s starts) string { return s.workspaceID },
	})
	claimTable = declare(schema[string, model.Claim]{
		name: "claim", copy: plain[model.Claim],
		key: func(c model.Claim) string { return c.AppID },
	})
	rolloutStateTable = declare(schema[string, model.RolloutState]{
		name: "rollout state of app", copy: model.RolloutState.Clone,
		key: func(s model.RolloutState) string { return s.AppID },
	})
	freezeTable = declare(schema[pair, model.Freeze]{
		name: "freeze", copy: model.Freeze.Clone,
		key: func(f model.Freeze) pair { return pair{f.WorkspaceID, f.Name} },
	})
	browserTable = declare(schema[string, model.BrowserSession]{
		name: "browser session",
		key:  func(s model.BrowserSession) string { return string(s.Hash) },
		copy: func(s model.BrowserSession) model.BrowserSession {
			s.Hash, s.KeyHash = bytes.Clone(s.Hash), bytes.Clone(s.KeyHash)
			return s
		},
	})
	memberTable = declare(schema[string, model.Member]{
		name: "member", copy: model.Member.Clone,
		key: func(m model.Member) string { return m.ID },
		unique: []func(model.Member) string{
			func(m model.Member) string { return string(m.Hash) },
			func(m model.Member) string { return m.WorkspaceID + "\x00" + string(m.Identity()) },
		},
	})
	signInRuleTable = declare(schema[pair, model.SignInRule]{
		name: "sign-in rule", copy: model.SignInRule.Clone,
		key: func(r model.SignInRule) pair { return pair{r.WorkspaceID, r.Name} },
	})
	usedSignInTable = declare(schema[string, model.UsedSignIn]{
		name: "used sign-in", copy: func(u model.UsedSignIn) model.UsedSignIn { u.Hash = bytes.Clone(u.Hash); return u },
		key: func(u model.UsedSignIn) string { return string(u.Hash) },
	})
	pinTable = declare(schema[pair, model.Pin]{
		name: "pin", copy: model.Pin.Clone,
		key: func(p model.Pin) pair { return pair{p.AppID, p.DeploymentID} },
	})
	appKeyTable = declare(schema[pair, model.AppKey]{
		name: "app key", copy: func(k model.AppKey) model.AppKey {
			k.Hash = bytes.Clone(k.Hash)
			return k
		},
		key: func(k model.AppKey) pair { return pair{k.AppID, k.Name} },
	})
	domainTable = declare(schema[pair, model.Domain]{
		name: "domain", copy: plain[model.Domain],
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
