package process

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/healthcheck"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	deploymentsDir = "deployments"
	instancesDir   = "instances"
	// assignmentExt follows a deployment's id in the name of its file.
	assignmentExt = ".json"

	// defaultPort is the name of the one port of a deployment that names no ports.
	defaultPort = "http"
)

// deployment is an assignment as it was last applied. It is never changed, only replaced.
type deployment struct {
	spec       *agentv1.Deployment
	workload   string
	generation int64
	template   string
	// roleTemplates has the templates of single roles, as in runtime.Assignment.
	roleTemplates map[string]string
	// roles is set if there are several roles.
	roles    []runtime.RoleCount
	removing bool
	// seq is the number of the assignment, in the order of arrival. Among the assignments that name
	// a workload, the assignment with the highest seq owns it.
	seq int64
	// left is the workload that the deployment had before, or "" if the agent knows of none. The
	// keeper of that workload may still use the earlier assignment.
	left string
	// secrets are held only in memory.
	secrets map[string]string
}

// assignment is a deployment in the form of its file.
type assignment struct {
	Seq        int64  `json:"seq"`
	Workload   string `json:"workload"`
	Generation int64  `json:"generation"`
	Template   string `json:"template"`
	// RoleTemplates has the templates of single roles.
	RoleTemplates map[string]string `json:"role_templates,omitempty"`
	Removing      bool              `json:"removing,omitempty"`
	Deployment    json.RawMessage   `json:"deployment"`
}

func newDeployment(a runtime.Assignment) *deployment {
	d := &deployment{
		spec:     proto.CloneOf(a.Deployment),
		workload: a.WorkloadKey, generation: a.Generation, template: a.TemplateHash,
		roleTemplates: maps.Clone(a.RoleTemplates), roles: a.RoleCounts(),
		secrets: maps.Clone(a.Secrets),
	}
	if d.workload == "" {
		d.workload = d.spec.GetId()
	}
	return d
}

func (d *deployment) sameAs(o *deployment) bool {
	return d != nil && d.workload == o.workload && d.generation == o.generation &&
		d.template == o.template && maps.Equal(d.roleTemplates, o.roleTemplates) && d.removing == o.removing && proto.Equal(d.spec, o.spec)
}

func (d *deployment) missingSecrets() []string {
	var missing []string
	for _, s := range d.spec.GetSpec().GetSecrets() {
		if _, ok := d.secrets[s.GetEnvName()]; !ok && !s.GetImagePull() {
			missing = append(missing, s.GetEnvName())
		}
	}
	return missing
}

// saveFile writes and syncs the assignment, so that an acknowledged assignment survives a power cut.
func (d *deployment) saveFile(dataDir string) error {
	spec, err := protojson.Marshal(d.spec)
	if err != nil {
		return fmt.Errorf("encode the assignment: %w", err)
	}
	return writeJSON(filepath.Join(dataDir, deploymentsDir), d.spec.GetId()+assignmentExt, assignment{
		Seq: d.seq, Workload: d.workload, Generation: d.generation, Template: d.template, RoleTemplates: d.roleTemplates,
		Removing: d.removing, Deployment: spec,
	}, true)
}

func (d *deployment) forgetFile(dataDir string) error {
	err := os.Remove(filepath.Join(dataDir, deploymentsDir, d.spec.GetId()+assignmentExt))
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

func (r *Runtime) nextSeq() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastSeq++
	return r.lastSeq
}

func (r *Runtime) loadDeployments() error {
	dir := filepath.Join(r.cfg.DataDir, deploymentsDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read assignments: %w", err)
	}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), assignmentExt)
		if !ok || strings.HasPrefix(id, ".") {
			continue
		}
		a, found, err := readJSON[assignment](dir, e.Name())
		if err != nil {
			return fmt.Errorf("read assignment of %s: %w", id, err)
		}
		spec := &agentv1.Deployment{}
		if !found || (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(a.Deployment, spec) != nil || spec.GetId() != id {
			// Writes are synced, so a file that cannot be read means a damaged disk. The instances
			// are left alone until the deployment is applied again or removed.
			r.log.Error("an assignment cannot be read; its instances keep running until it is applied again", "deployment", id)
			continue
		}
		d := newDeployment(runtime.Assignment{
			Deployment: spec, WorkloadKey: a.Workload, Generation: a.Generation, TemplateHash: a.Template, RoleTemplates: a.RoleTemplates,
		})
		d.removing, d.seq = a.Removing, a.Seq
		r.deployments[spec.GetId()] = d
		r.lastSeq = max(r.lastSeq, a.Seq)
		r.workloadLocked(d.workload)
	}
	return nil
}

// templateOf returns the template that instances of a role should have.
func (d *deployment) templateOf(role string) string {
	return runtime.Assignment{TemplateHash: d.template, RoleTemplates: d.roleTemplates}.TemplateOf(role)
}

func (d *deployment) wantedRoles() []wantedRole {
	var out []wantedRole
	for _, r := range runtime.RolesIn(d.spec) {
		out = append(out, wantedRole{r.Name, r.Instances, d.templateOf(r.Name), r.Stable, r.Entry, r.StartsAfter, r.Unavailable, r.Stays, r.YieldsWhenFull})
	}
	return out
}

func portsOf(s *windlassv1.DeploymentSpec) []needPort {
	if len(s.GetPorts()) == 0 {
		return []needPort{{name: defaultPort}}
	}
	var out []needPort
	for _, p := range s.GetPorts() {
		out = append(out, needPort{p.GetName(), int(p.GetPort())})
	}
	return out
}

// directoryName matches ids that can be the name of a directory. Ids are opaque, but must not be
// paths.
var directoryName = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_.]{0,127}$`)

// refuseAssignment returns why this host can never run the assignment, or nil if it may.
func (r *Runtime) refuseAssignment(a runtime.Assignment) *runtime.Rejection {
	final := func(code, format string, args ...any) *runtime.Rejection {
		return &runtime.Rejection{Code: code, Message: fmt.Sprintf(format, args...)}
	}
	d := a.Deployment
	if !directoryName.MatchString(d.GetId()) {
		return final(runtime.ReasonInvalidSpec, "id: %q is not a valid id of a deployment", d.GetId())
	}
	if d.GetSpec() == nil {
		return final(runtime.ReasonInvalidSpec, "spec: it is missing")
	}
	if r.sharesUser(d) {
		return final(runtime.ReasonUnsupported, "another workspace has instances on this host, and instances are not isolated from each other here: "+
			"use another region, or ask the operator to run the agent as root, which isolates them, or with --trust-all-tenants")
	}
	if key := newDeployment(a).workload; runtime.HasStableSlots(d.GetSpec()) && !directoryName.MatchString(key) {
		return final(runtime.ReasonInvalidSpec, "workload_key: %q cannot be the name of a directory, which stable slots need", key)
	}
	if d.GetReplicas() < 0 {
		return final(runtime.ReasonInvalidSpec, "replicas: %d is negative", d.GetReplicas())
	}
	if rej := runtime.RefuseRoles(d.GetSpec()); rej != nil {
		return rej
	}
	if rej := runtime.RefuseHosts(d.GetSpec()); rej != nil {
		return rej
	}
	names, numbers := map[string]bool{}, map[int]bool{}
	for i, p := range portsOf(d.GetSpec()) {
		if names[p.name] {
			return final(runtime.ReasonInvalidSpec, "ports[%d].name: %q occurs twice", i, p.name)
		}
		if p.port > 0 && numbers[p.port] {
			return final(runtime.ReasonInvalidSpec, "ports[%d].port: %d occurs twice", i, p.port)
		}
		names[p.name], numbers[p.port] = true, true
	}
	if h := d.GetSpec().GetHealthCheck().GetPort(); h != "" && !names[h] {
		return final(runtime.ReasonInvalidSpec, "healthCheck.port: no port is named %q", h)
	}
	if _, err := healthcheck.ParseCodes(d.GetSpec().GetHealthCheck().GetExpectedCodes()); err != nil {
		return final(runtime.ReasonInvalidSpec, "healthCheck.expectedCodes: %v", err)
	}
	perReplica := 0
	for i, ro := range runtime.RolesIn(d) {
		at := "" // the path of the role in the spec
		if len(d.GetSpec().GetRoles()) > 0 {
			at = fmt.Sprintf("roles[%d].", i)
		}
		perReplica += ro.Instances
		if len(r.commandOf(ro)) == 0 {
			if ro.Image != "" {
				return final(runtime.ReasonUnsupported, "%scommand: this host runs processes, and has no program for image %s: set command, or ask its operator for --image-command",
					at, repositoryOf(ro.Image))
			}
			return final(runtime.ReasonInvalidSpec, "%scommand: there is nothing to run: set command", at)
		}
		if rej := r.refuseResources(at, ro.Resources); rej != nil {
			return rej
		}
	}
	if n := perReplica * runtime.GroupsIn(d); n > r.cfg.MaxInstances {
		return final(runtime.ReasonUnschedulable, "replicas: the deployment needs %d instances, and this host runs at most %d of one deployment", n, r.cfg.MaxInstances)
	}
	return nil
}

// refuseResources returns why this host can never provide the resources of a role, or nil if it may. at is the path of
// the role in the spec, empty for none.
func (r *Runtime) refuseResources(at string, res *windlassv1.Resources) *runtime.Rejection {
	final := func(format string, args ...any) *runtime.Rejection {
		return &runtime.Rejection{Code: runtime.ReasonUnschedulable, Message: fmt.Sprintf(format, args...)}
	}
	if n := int(res.GetCpuMillicores()); n > r.cfg.CPUMillicores {
		return final("%sresources.cpuMillicores: needs %d, this host has %d", at, n, r.cfg.CPUMillicores)
	}
	if n := int(res.GetMemoryMib()); n > r.cfg.MemoryMiB {
		return final("%sresources.memoryMib: needs %d MiB, this host has %d", at, n, r.cfg.MemoryMiB)
	}
	return r.refuseGPUs(at+"resources.gpu", res.GetGpu())
}
