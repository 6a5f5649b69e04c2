package dispatch

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"math"
	"sort"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/pkg/scaling"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// specHashSize is the size of a spec hash in bytes. Two contents never have the same hash by chance.
const specHashSize = 16

// describeDeployment returns the fields of a deployment that are sent but are not part of the hash. The trace does not
// change instances. The other fields can change without a revision: names of projects, the features that a release
// knows, the domain of hosts, quotas and grants. With them in the hash, every agent would seem to have drifted after
// such a change. Changes of all these fields arrive with the next generation.
func describeDeployment(state *agentv1.DeploymentState, it *model.DesiredItem, with sending) *agentv1.DeploymentState {
	about := &agentv1.DeploymentState{Traceparent: it.Topology.Traceparent}
	if it.Delete {
		return about
	}
	about.RequiredFeatures = requiredFeatures(state.Deployment.Spec)
	about.WorkloadVersion = it.Deployment.Version
	about.Deployment = &agentv1.Deployment{ProjectName: it.App.ProjectName, EnvironmentName: it.App.EnvironmentName}
	about.Deployment.RaiseAlone = raiseAlone(it, with.limits)
	if with.domain != "" {
		about.Deployment.PreviewHost = model.PreviewHost(it.Deployment.AppID, it.App.Name, it.Deployment.Version, with.domain)
	}
	if it.Topology.Workload != "" {
		about.WorkloadVersion = it.Topology.WorkloadVersion
		about.RequiredFeatures = append(about.RequiredFeatures, agentv1.Feature_FEATURE_IN_PLACE.String())
	}
	return about
}

// A region may raise its replicas alone by at most 1/aloneShare of the part of a quota that is free. A region that is cut
// off does not know what other regions use, and they may be cut off, too.
const aloneShare = 10

// raiseAlone returns the permission to raise the replicas without the control plane, nil for none.
func raiseAlone(it *model.DesiredItem, ours model.Limits) *agentv1.RaiseAlone {
	s := model.Scaling{Policy: it.Scaling, Holds: it.Alone.Holds}
	spec, replicas := override.In(it.Deployment.Spec, it.RegionID), it.Topology.Replicas
	if !s.Scales("") || model.IsPooled(spec) || replicas == 0 || it.Alone.Closed {
		return nil
	}
	// Holds that have ended do no harm: the agent compares the time.
	out := &agentv1.RaiseAlone{HeldUntil: s.HeldUntil(it.RegionID, "", 0)}
	limits := admission.InForce(ours, model.Limits{Instances: it.Alone.Instances, GPUs: it.Alone.GPUs})
	instances, gpus := admission.Of(spec, 1)
	has := it.Alone.Ceiling
	for _, c := range []struct{ limit, used, each int64 }{{limits.Instances, has.Instances, instances}, {limits.GPUs, has.GPUs, gpus}} {
		if c.limit <= 0 || c.each <= 0 {
			continue
		}
		more := (c.limit - c.used) / aloneShare / c.each
		if has.CountedAt == 0 || more <= 0 {
			return nil
		}
		most := int32(min(int64(replicas)+more, math.MaxInt32))
		if out.MaxReplicas == 0 || most < out.MaxReplicas {
			out.MaxReplicas = most
		}
	}
	return out
}

func deploymentState(it *model.DesiredItem) *agentv1.DeploymentState {
	if it.Delete {
		return &agentv1.DeploymentState{
			Action:      agentv1.DeploymentState_ACTION_DELETE,
			Deployment:  &agentv1.Deployment{Id: it.Key, AppId: it.Deployment.AppID, WorkspaceId: it.Deployment.WorkspaceID},
			WorkloadKey: cmp.Or(it.Topology.Workload, it.Key),
			HandedOver:  it.Topology.Transferred,
		}
	}
	d := &it.Deployment
	base := override.In(d.Spec, it.RegionID)
	spec := it.Topology.In(base)
	if d.ResolvedImage != "" && d.ResolvedImage != spec.Image {
		spec = withImage(spec, d.ResolvedImage)
	}
	dep := &agentv1.Deployment{
		Id:             d.ID,
		WorkspaceId:    d.WorkspaceID,
		ProjectId:      it.App.ProjectID,
		EnvironmentId:  it.App.EnvironmentID,
		AppId:          d.AppID,
		AppName:        it.App.Name,
		Version:        d.Version,
		Replicas:       it.Topology.Replicas,
		Wake:           it.Topology.WakeTo(spec),
		Spec:           spec,
		MaxUnavailable: it.Topology.MaxUnavailable,
		Scaling:        scaling.In(it.Scaling, it.RegionID),
	}
	for name, version := range it.SecretVersions {
		dep.Secrets = append(dep.Secrets, &agentv1.SecretVersion{Secret: name, Version: version})
	}
	sort.Slice(dep.Secrets, func(i, j int) bool { return dep.Secrets[i].Secret < dep.Secrets[j].Secret })
	dep.TemplateHash = templateHash(d.Made(), d.ResolvedImage, base, dep.Secrets)
	dep.RoleTemplates = roleTemplates(d, base, dep.Secrets)
	dep.MovingRoles = it.Topology.MovingRoles()
	return &agentv1.DeploymentState{
		Action:      agentv1.DeploymentState_ACTION_APPLY,
		Deployment:  dep,
		WorkloadKey: cmp.Or(it.Topology.Workload, d.ID),
	}
}

// withImage returns a copy of the spec with another image. The copy shares all other fields with the spec, which may
// be encoded for other regions at the same time. So neither may be changed.
func withImage(spec *windlassv1.DeploymentSpec, image string) *windlassv1.DeploymentSpec {
	out := &windlassv1.DeploymentSpec{}
	from, to := spec.ProtoReflect(), out.ProtoReflect()
	from.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		to.Set(field, value)
		return true
	})
	to.SetUnknown(from.GetUnknown())
	out.Image = image
	return out
}

// templateHash returns a hash of the stored values from which an instance is made. It does not hash an encoding,
// because a release with another encoding would replace every instance. It leaves out fields that instances do not
// see, because a version that differs only in such fields keeps the instances. It leaves out secrets that only pull
// the image, because a new password of a registry is no reason to restart instances.
func templateHash(made []byte, image string, spec *windlassv1.DeploymentSpec, secrets []*agentv1.SecretVersion) []byte {
	variables := map[string]bool{}
	for _, ref := range spec.GetSecrets() {
		variables[ref.GetSecret()] = variables[ref.GetSecret()] || !ref.GetImagePull()
	}
	h := sha256.New()
	h.Write(made)
	_, _ = fmt.Fprintf(h, "\x00%s", image)
	for _, s := range secrets {
		if !variables[s.Secret] {
			continue
		}
		_, _ = fmt.Fprintf(h, "\x00%s\x00%d", s.Secret, s.Version)
	}
	return h.Sum(nil)[:specHashSize]
}

// roleTemplates returns the template hash of each role of a spec with several roles. The hash of a role whose
// instances do not change with the resolved image leaves that image out.
func roleTemplates(d *model.Deployment, spec *windlassv1.DeploymentSpec, secrets []*agentv1.SecretVersion) (out []*agentv1.RoleTemplate) {
	hashes := d.RoleHashes()
	for _, r := range spec.GetRoles() {
		made, image := hashes[r.GetName()], d.ResolvedImage
		if made == nil {
			return nil
		}
		if !model.HasSpecImage(spec, r) {
			image = ""
		}
		out = append(out, &agentv1.RoleTemplate{Role: r.GetName(), TemplateHash: templateHash(made, image, spec, secrets)})
	}
	return out
}

func routesOf(it *model.DesiredItem) (*agentv1.Routes, error) {
	r := &agentv1.Routes{AppId: it.Key}
	if it.Delete || len(it.Route.Hosts) == 0 {
		return r, nil // without hosts, no version gets requests, even with a weight
	}
	var err error
	if r.Policy, err = it.Route.Routing(); err != nil {
		return nil, err
	}
	keys, err := it.Route.AppKeys()
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		r.Keys = append(r.Keys, &agentv1.AppKey{Name: k.Name, Hash: k.Hash, ExpiresAt: k.ExpiresAt})
	}
	r.Hosts = it.Route.Hosts
	for _, t := range model.Shares(it.Targets) {
		r.Targets = append(r.Targets, &agentv1.RouteTarget{DeploymentId: t.DeploymentID, Weight: t.Weight, WorkloadKey: t.Workload})
	}
	return r, nil
}
