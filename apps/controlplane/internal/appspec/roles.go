package appspec

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	"github.com/windlass-run/windlass/pkg/pool"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// fillRoles sets the defaults of roles. A spec with one role keeps the form that it had in releases without several
// roles, so that its hash stays the same.
func fillRoles(s *windlassv1.DeploymentSpec) {
	roles := s.GetRoles()
	if len(roles) < 2 {
		if s.Layout == windlassv1.Layout_LAYOUT_REPLICAS {
			s.Layout = windlassv1.Layout_LAYOUT_UNSPECIFIED
		}
	} else {
		s.Layout = cmp.Or(s.Layout, windlassv1.Layout_LAYOUT_REPLICAS)
	}
	fillUpdate(s)
	fillGang(s)
	fillTopology(s)
	fillPairing(s)
	for _, r := range roles {
		if r.Hosts == 1 {
			r.Hosts = 0
		}
		if r.Slots == windlassv1.RoleSpec_SLOTS_ANY {
			r.Slots = windlassv1.RoleSpec_SLOTS_UNSPECIFIED
		}
		if len(roles) < 2 {
			r.Entry = false
			continue
		}
		if !model.IsPooled(s) {
			r.Instances = max(r.Instances, 1) // 0 in a pool keeps the pool's instances
		}
		if own := r.Resources; own != nil {
			own.CpuMillicores = cmp.Or(own.CpuMillicores, s.Resources.GetCpuMillicores())
			own.MemoryMib = cmp.Or(own.MemoryMib, s.Resources.GetMemoryMib())
			if own.Gpu.GetCount() == 0 {
				own.Gpu = nil
			}
		}
	}
	if len(roles) > 1 && !slices.ContainsFunc(roles, (*windlassv1.RoleSpec).GetEntry) {
		roles[0].Entry = true
	}
}

// checkRoles validates the roles of a spec with defaults.
func checkRoles(s *windlassv1.DeploymentSpec, field string) error {
	if err := checkPool(s, field); err != nil {
		return err
	}
	if err := checkUpdate(s, field+".update"); err != nil {
		return err
	}
	if err := checkGang(s, field+".gang"); err != nil {
		return err
	}
	if err := checkTopology(s, field+".topology"); err != nil {
		return err
	}
	names, entry := map[string]int{}, -1
	for i, r := range s.GetRoles() {
		at := fmt.Sprintf("%s.roles[%d]", field, i)
		if first, ok := names[r.GetName()]; ok {
			return apierr.InvalidFix(at+".name", fmt.Sprintf("role %q is named twice: %s.roles[%d] has the same name", r.GetName(), field, first),
				"Give each role another name. To run a role several times in a group, set its instances.")
		}
		names[r.GetName()] = i
		if r.GetEntry() && entry >= 0 {
			return apierr.InvalidFix(at+".entry", fmt.Sprintf("roles %q and %q are both the entry role", s.GetRoles()[entry].GetName(), r.GetName()),
				"Routes lead to one role: remove entry from the other roles.")
		}
		if r.GetEntry() {
			entry = i
		}
		if err := checkHosts(s, r, at, field); err != nil {
			return err
		}
		if err := checkRole(s, r, at); err != nil {
			return err
		}
	}
	if err := checkTogether(s, field); err != nil {
		return err
	}
	if err := checkSlots(s, field); err != nil {
		return err
	}
	if err := checkPairing(s, field+".pairing"); err != nil {
		return err
	}
	return checkOrder(s.GetRoles(), names, field)
}

// checkTogether refuses a spec in which only one role sets together.
func checkTogether(s *windlassv1.DeploymentSpec, field string) error {
	names := model.RolesTogether(s)
	if len(names) != 1 {
		return nil
	}
	at := slices.IndexFunc(s.GetRoles(), (*windlassv1.RoleSpec).GetTogether)
	return apierr.InvalidFix(fmt.Sprintf("%s.roles[%d].together", field, at), fmt.Sprintf("no other role changes together with role %q", names[0]),
		"Set together in the other roles that change with it, or leave it out.")
}

// checkPool refuses fields that a spec with the layout pooled must not set.
func checkPool(s *windlassv1.DeploymentSpec, field string) error {
	if !model.IsPooled(s) {
		return nil
	}
	switch n := s.GetReplicas(); {
	case len(s.GetRoles()) < 2:
		return apierr.InvalidFix(field+".layout", fmt.Sprintf("a pool needs several roles, but the spec names %d", len(s.GetRoles())), "Name the roles, or leave layout out.")
	case s.Replicas != nil && n != 0 && n != pool.Whole:
		return apierr.InvalidFix(field+".replicas", fmt.Sprintf("replicas is %d, but a region has one pool", n),
			"Leave replicas out, and set instances of each role. Use 0 to stop the pool.")
	case s.GetMinReady() > 0:
		return apierr.InvalidFix(field+".minReady", "a pool is ready when every role has all its instances", "Leave minReady out.")
	}
	return nil
}

// checkPoolPolicy refuses a policy that a rollout of a pool cannot follow.
func checkPoolPolicy(p *windlassv1.RolloutPolicy, s *windlassv1.DeploymentSpec, field string) error {
	const fix = "Use strategy rolling, which replaces instances in their slots if one role differs or update.order is set. Or use recreate if the region has no capacity for a second version."
	moves := pool.OrderOf(s.GetUpdate()).InPlace(len(s.GetRoles())) // however many roles differ
	switch {
	case !model.IsPooled(s):
	case model.ReplacesWhenFull(s) && strategy.Of(p) != strategy.Of(nil):
		return apierr.InvalidFix(field+".strategy", fmt.Sprintf("update.whenFull applies to instances that are replaced in their slots, but strategy %s does not replace instances in their slots", strategy.Name(p)),
			"Use strategy rolling, or leave update.whenFull out.")
	case model.ReplacesWhenFull(s) && p.GetMaxUnavailable() != "" && !isNone(p.GetMaxUnavailable()):
		return apierr.InvalidFix(field+".maxUnavailable", fmt.Sprintf("maxUnavailable is %s, so instances stop before the new ones start even if the region has capacity for more", p.GetMaxUnavailable()),
			"Leave maxUnavailable out, or leave update.whenFull out.")
	case moves && strategy.Of(p) != strategy.Of(nil):
		return apierr.InvalidFix(field+".strategy", fmt.Sprintf("order %s replaces instances in their slots, but strategy %s does not", pool.OrderName(s.GetUpdate()), strategy.Name(p)),
			"Use strategy rolling, or leave update.order out.")
	case strategy.Of(p).Order() == strategy.InPlace:
		return apierr.InvalidFix(field+".strategy", "the strategy replaces instances in place, so instances of two versions would call each other", fix)
	case isNone(p.GetMaxSurge()) && moves:
		return apierr.InvalidFix(field+".maxSurge", fmt.Sprintf("maxSurge is 0, and order %s starts one more instance of a role unless maxUnavailable is set", pool.OrderName(s.GetUpdate())),
			"Leave maxSurge out, and set maxUnavailable to 1% or more: instances then stop before their successors start.")
	case isNone(p.GetMaxSurge()):
		return apierr.InvalidFix(field+".maxSurge", "maxSurge is 0, and each version of a pool has at least one instance of every role", fix)
	}
	return nil
}

// checkHosts refuses fields that cannot be combined with instances of several hosts. The API checks whether a
// region's agent can run such instances.
func checkHosts(s *windlassv1.DeploymentSpec, r *windlassv1.RoleSpec, at, field string) error {
	n := model.HostsOf(r)
	which := fmt.Sprintf("instances of role %q have %d hosts", r.GetName(), n)
	switch {
	case n == 1:
	case len(s.GetRoles()) == 1 && r.GetInstances() > 1:
		return apierr.InvalidFix(at+".instances", which+", and a replica of one role is one instance", "Leave instances out, and raise replicas.")
	case s.GetModels() != nil:
		return apierr.InvalidFix(at+".hosts", fmt.Sprintf("a server of models has one host, not %d", n), "Leave hosts or models out.")
	case s.GetRouting().GetColdStart() != nil:
		return apierr.InvalidFix(field+".routing.coldStart", which+", and a request cannot start instances of several hosts", "Remove coldStart or hosts.")
	case s.GetModelCache().GetClaim().GetSingleNode():
		return apierr.InvalidFix(field+".modelCache.claim.singleNode", which+", but the cache keeps all instances on one node", "Remove singleNode or hosts.")
	}
	return nil
}

func checkRole(s *windlassv1.DeploymentSpec, r *windlassv1.RoleSpec, at string) error {
	if err := checkCommand(r.GetCommand(), r.GetArgs(), at); err != nil {
		return err
	}
	if err := checkResources(r.GetResources(), at+".resources"); err != nil {
		return err
	}
	if err := CheckEnv(r.GetEnv(), at+".env"); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(r.GetEnv())) {
		if slices.ContainsFunc(s.GetSecrets(), func(ref *windlassv1.SecretReference) bool { return ref.GetEnvName() == name }) {
			return apierr.InvalidFix(fmt.Sprintf("%s.env[%q]", at, name), fmt.Sprintf("a secret sets variable %s for all roles", name), "Use another name.")
		}
		for _, p := range s.GetPorts() {
			if name == portVariable(p) {
				return apierr.Invalid(fmt.Sprintf("%s.env[%q]", at, name), fmt.Sprintf("variable %s is taken: Windlass sets it to the number of port %q", name, p.GetName()))
			}
		}
	}
	several := len(s.GetRoles()) > 1
	if several && r.GetImage() != "" && r.GetImage() != s.GetImage() && !strings.Contains(r.GetImage(), "@sha256:") {
		return apierr.InvalidFix(at+".image", fmt.Sprintf("image %q has a tag, but only the tag of the spec's image is resolved", r.GetImage()),
			"Write the image with its digest, host/name@sha256:..., or use the spec's image.")
	}
	if several && r.GetImage() == "" && s.GetImage() == "" && len(r.GetCommand()) == 0 && len(s.GetCommand()) == 0 {
		return apierr.InvalidFix(at, fmt.Sprintf("role %q has no image and no command", r.GetName()), "Set the image or command of the role or of the spec.")
	}
	return nil
}

// checkOrder fails on roles that start after unknown ones, or in a circle.
func checkOrder(roles []*windlassv1.RoleSpec, names map[string]int, field string) error {
	for i, r := range roles {
		for j, name := range r.GetStartsAfter() {
			if _, ok := names[name]; !ok || name == r.GetName() {
				return apierr.InvalidFix(fmt.Sprintf("%s.roles[%d].startsAfter[%d]", field, i, j), fmt.Sprintf("role %q starts after %q, which is not another role", r.GetName(), name),
					"Name other roles of the app. Its roles are "+strings.Join(roleNames(roles), ", ")+".")
			}
		}
	}
	// A role is placed when all roles before it are placed. A role that is never placed is in a circle, or starts
	// after one.
	placed := map[string]bool{}
	for range roles {
		for _, r := range roles {
			placed[r.GetName()] = placed[r.GetName()] || !slices.ContainsFunc(r.GetStartsAfter(), func(n string) bool { return !placed[n] })
		}
	}
	for i, r := range roles {
		if !placed[r.GetName()] {
			return apierr.InvalidFix(fmt.Sprintf("%s.roles[%d].startsAfter", field, i), fmt.Sprintf("role %q would never start: roles start after each other in a circle", r.GetName()),
				"Remove one startsAfter of the circle.")
		}
	}
	return nil
}

func roleNames(roles []*windlassv1.RoleSpec) []string {
	var out []string
	for _, r := range roles {
		out = append(out, r.GetName())
	}
	return out
}

// checkRoleOverrides validates an override's changes to roles. If the app has several roles, it refuses changes that
// would apply to all roles.
func checkRoleOverrides(s *windlassv1.DeploymentSpec, o *windlassv1.Override, at string) error {
	names := roleNames(s.GetRoles())
	if len(names) > 1 {
		const fix = "Name the role: roles: [{name: ..., resources: ..., args: ...}] in the override."
		for _, f := range []struct {
			name string
			set  bool
		}{{"args", len(o.GetArgs()) > 0}, {"extraArgs", len(o.GetExtraArgs()) > 0}, {"resources", o.GetResources() != nil}} {
			if f.set {
				return apierr.InvalidFix(at+"."+f.name, "the app has several roles, and this value would apply to all of them", fix)
			}
		}
	}
	seen := map[string]bool{}
	for i, r := range o.GetRoles() {
		where := fmt.Sprintf("%s.roles[%d]", at, i)
		switch {
		case len(names) < 2:
			return apierr.InvalidFix(where, "the app has one role", "Set resources and args in the override itself.")
		case !slices.Contains(names, r.GetName()):
			return apierr.InvalidFix(where+".name", fmt.Sprintf("the app has no role %q", r.GetName()), "Its roles are "+strings.Join(names, ", ")+".")
		case seen[r.GetName()]:
			return apierr.InvalidFix(where+".name", fmt.Sprintf("role %q is named twice", r.GetName()), "Put all changes to the role into one entry.")
		case r.GetInstances() > 0 && !model.IsPooled(s):
			return apierr.InvalidFix(where+".instances", "a replica has the same number of instances of a role in every region", "Use layout pooled, or set replicas in the override.")
		case r.GetResources() == nil && len(r.GetArgs()) == 0 && r.GetInstances() == 0:
			return apierr.InvalidFix(where, fmt.Sprintf("the override changes nothing of role %q", r.GetName()), "Set resources or args, or instances with layout pooled, or remove the entry.")
		}
		seen[r.GetName()] = true
		if err := checkCommand(nil, r.GetArgs(), where); err != nil {
			return err
		}
		if err := checkResources(r.GetResources(), where+".resources"); err != nil {
			return err
		}
	}
	return nil
}

// RolesMade returns the value of model.Deployment.RolesMade for the spec: a hash for each of several roles, empty for
// one role. A role that does not differ from the live version keeps the live version's hash, even if another release
// computed it. Roles that change together keep their hashes only if none of them differs.
func RolesMade(spec *windlassv1.DeploymentSpec, live *model.Deployment) (string, error) {
	if len(spec.GetRoles()) < 2 {
		return "", nil
	}
	before := map[string][]byte{}
	if live != nil {
		before = live.RoleHashes()
	}
	hashes, made := map[string][]byte{}, map[string][]byte{}
	for _, r := range spec.GetRoles() {
		hash, err := roleHash(spec, r.GetName())
		if err != nil {
			return "", err
		}
		made[r.GetName()], hashes[r.GetName()] = hash, hash
		if before[r.GetName()] == nil {
			continue
		}
		was, err := roleHash(live.Spec, r.GetName())
		if err != nil {
			return "", err
		}
		if bytes.Equal(was, hash) {
			hashes[r.GetName()] = before[r.GetName()]
		}
	}
	together := model.RolesTogether(spec)
	if slices.ContainsFunc(together, func(name string) bool { return before[name] == nil || !bytes.Equal(hashes[name], before[name]) }) {
		for _, name := range together {
			hashes[name] = hashTogether(name, together, made)
		}
	}
	return model.EncodeRoleHashes(hashes)
}

// hashTogether returns the hash of a role that changes together with others. made has the hashes of all roles.
func hashTogether(name string, together []string, made map[string][]byte) []byte {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%s\x00%x", name, made[name])
	for _, other := range slices.Sorted(slices.Values(together)) {
		_, _ = fmt.Fprintf(h, "\x00%s\x00%x", other, made[other])
	}
	return h.Sum(nil)
}

// roleHash returns a hash of the fields that instances of the role see. It leaves out the number of instances, the
// roles after which the role starts, and whether routes lead to it.
func roleHash(spec *windlassv1.DeploymentSpec, name string) ([]byte, error) {
	s := proto.CloneOf(spec)
	s.PinnedOverrides = override.Versioned(s)
	for _, p := range s.PinnedOverrides {
		p.Values.Roles = slices.DeleteFunc(p.Values.Roles, func(r *windlassv1.RoleOverride) bool { return r.GetName() != name })
	}
	s.PinnedOverrides = slices.DeleteFunc(s.PinnedOverrides, func(p *windlassv1.PinnedOverride) bool { return proto.Size(p.GetValues()) == 0 })
	s.Roles = slices.DeleteFunc(s.Roles, func(r *windlassv1.RoleSpec) bool { return r.GetName() != name })
	s.Layout = windlassv1.Layout_LAYOUT_UNSPECIFIED
	for _, r := range s.Roles {
		r.Instances, r.Entry, r.StartsAfter = 0, false, nil
		if r.Image != "" {
			s.Image = ""
		}
		if len(r.Command) > 0 {
			s.Command = nil
		}
		if len(r.Args) > 0 {
			s.Args = nil
		}
		if r.Resources != nil {
			s.Resources = nil
		}
	}
	return hashOf(s, ofInstances)
}

// GroupText describes a replica of several roles or several hosts in words: "2 prefill and 1 decode of 2 hosts" or
// "an instance of 2 hosts". It is empty for other specs.
func GroupText(spec *windlassv1.DeploymentSpec) string {
	roles := spec.GetRoles()
	if len(roles) < 2 {
		if !model.HasSeveralHosts(spec) {
			return ""
		}
		return fmt.Sprintf("an instance of %d hosts", model.HostsOf(roles[0]))
	}
	var parts []string
	for _, r := range roles {
		part := fmt.Sprintf("%d %s", max(r.GetInstances(), 1), r.GetName())
		if n := model.HostsOf(r); n > 1 {
			part += fmt.Sprintf(" of %d hosts", n)
		}
		parts = append(parts, part)
	}
	return ListText(parts)
}

// ListText joins parts as in "a, b and c".
func ListText(parts []string) string {
	last := len(parts) - 1
	if last < 1 {
		return strings.Join(parts, "")
	}
	return strings.Join(parts[:last], ", ") + " and " + parts[last]
}
