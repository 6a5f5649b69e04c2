package chaos

import (
	"math/rand/v2"
	"slices"
	"strconv"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Three of the loose apps have roles:
//
//   - loose-2 has replicas of prefill and decode instances, of one host or two, and gangs and pairs at random.
//   - loose-3 has a role with stable slots, whose instances are replaced in their slots.
//   - loose-4 is a pool. Its orders, its pairs and the roles that differ are random.
const (
	groupsName = "loose-2"
	slotsName  = "loose-3"
	rolesName  = "loose-4"
	// groupSize is how many instances a replica of loose-2 has.
	groupSize = 3
	// slotless is what is said of stable slots that do not count from 0 without gaps, or that have two instances.
	slotless = "stable slots are not as they should be"
)

// instancesEach returns how many instances a replica of the app has. It does not count for pools.
func instancesEach(app string) int {
	if app == groupsName {
		return groupSize
	}
	return 1
}

// takesOver reports whether versions of the app may take over instances of the version before them.
func takesOver(app string) bool { return app == slotsName || app == rolesName }

// roleSpec makes the spec one of an app with roles, and returns the policy of its rollout. It does nothing for other apps.
func roleSpec(app string, spec *windlassv1.DeploymentSpec, rnd *rand.Rand) *windlassv1.RolloutPolicy {
	switch app {
	case groupsName:
		hosts := 1 + rnd.Int32N(2)
		spec.Roles = []*windlassv1.RoleSpec{{Name: prefill, Instances: groupSize - 1}, {Name: decode, Entry: true, Hosts: hosts}}
		pairSpec(spec, rnd)
		switch of := windlassv1.Gang_Of(rnd.IntN(len(windlassv1.Gang_Of_name))); {
		case of == windlassv1.Gang_OF_UNSPECIFIED, of == windlassv1.Gang_OF_UNIT && hosts == 1:
			spec.Roles[1].StartsAfter = []string{prefill}
		default:
			spec.Gang = &windlassv1.Gang{Of: of}
		}
	case slotsName:
		spec.Roles = []*windlassv1.RoleSpec{{Name: "cache", Slots: windlassv1.RoleSpec_SLOTS_STABLE}}
		return &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_IN_PLACE}
	case rolesName:
		poolSpec(spec, rnd)
	}
	return nil
}

// poolSpec makes the spec a pool.
func poolSpec(spec *windlassv1.DeploymentSpec, rnd *rand.Rand) {
	spec.Layout, spec.Replicas = windlassv1.Layout_LAYOUT_POOLED, nil
	spec.Update = &windlassv1.PoolUpdate{
		Order:    windlassv1.PoolUpdate_Order(rnd.IntN(len(windlassv1.PoolUpdate_Order_name))),
		WhenFull: windlassv1.PoolUpdate_WhenFull(rnd.IntN(len(windlassv1.PoolUpdate_WhenFull_name))),
	}
	spec.Roles = []*windlassv1.RoleSpec{{Name: prefill, Instances: 1 + rnd.Int32N(3)}, {Name: decode, Entry: true, Instances: 1 + rnd.Int32N(2), Hosts: 1 + rnd.Int32N(8)/7}}
	for _, r := range spec.Roles {
		r.Env = map[string]string{"ROLE": strconv.Itoa(rnd.IntN(3))}
	}
	pairSpec(spec, rnd)
	if spec.VersionLabel != crashes && rnd.IntN(2) == 0 {
		// At most the roles' own variables differ.
		spec.Env, spec.Args = map[string]string{"VERSION": "0"}, nil
		together := rnd.IntN(4) == 0
		spec.Roles[0].Together, spec.Roles[1].Together = together, together
	}
}

// pairSpec draws how gateways pair the roles.
func pairSpec(spec *windlassv1.DeploymentSpec, rnd *rand.Rand) {
	switch rnd.IntN(3) {
	case 1:
		spec.Pairing = &windlassv1.Pairing{Engine: windlassv1.Pairing_ENGINE_NIXL, MinPromptBytes: 100 * rnd.Int64N(2)}
	case 2:
		spec.Pairing = &windlassv1.Pairing{Engine: windlassv1.Pairing_ENGINE_SGLANG}
		spec.Ports = []*windlassv1.Port{{Name: "http"}, {Name: "bootstrap"}}
	}
}

// roleScale makes the call one that scales an app with roles.
func roleScale(app string, req *windlassv1.ScaleRequest, rnd *rand.Rand) {
	if app == rolesName {
		req.Role, req.Replicas = []string{prefill, decode}[rnd.IntN(2)], max(req.Replicas, 1)
	}
}

// agreeSlots returns a disagreement if the instances of an app with stable slots, in one place, have other slots than 0 to
// the number of replicas.
func (b books) agreeSlots() *disagreement {
	for _, r := range b.rows {
		if r.app != slotsName || r.status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED {
			continue
		}
		slots := slices.Sorted(slices.Values(b.groups[r.place]))
		for want, has := range slots {
			if has != want {
				return &disagreement{slotless, r.app, r.place, strconv.Itoa(len(slots)) + " instances, and slot " + strconv.Itoa(want) + " is missing or has two"}
			}
		}
	}
	return nil
}
