// Package runtime is the interface between the agent and the platform that runs instances. Its main
// operations are: apply one assignment, remove one, observe all.
//
// A Runtime is level-triggered. Apply and Remove store the wanted state durably and return. The
// runtime then works towards this state by itself, also while the agent is away, and Observe
// returns the current state. A second call of Apply or Remove with the same arguments changes
// nothing. The process and Kubernetes runtimes pass the tests of package runtimetest. Package
// simulated does not, because it runs no programs. It has its own tests.
package runtime

import (
	"context"
	"errors"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Runtime runs the instances of a region. It is safe for concurrent use. The caller never has two
// calls for one deployment in flight.
type Runtime interface {
	// Apply stores a as the wanted state of a.Deployment. It returns once this state is durable,
	// before instances run. If the runtime can never run the assignment, Apply returns a *Rejection
	// and changes nothing. The latest call wins whatever its generation is: the inbox has already
	// compared (epoch, generation), and after a fork generations start at a lower number.
	Apply(ctx context.Context, a Assignment) error

	// Remove makes the runtime drain, stop and forget the instances of the deployment, with
	// everything that was made for them. The removal is done when Observe no longer lists the
	// deployment. An unknown deployment is not an error.
	Remove(ctx context.Context, deploymentID string) error

	// Observe lists every deployment of which the runtime runs or stores anything, whether it is
	// wanted or not.
	Observe(ctx context.Context) (Observation, error)

	// Changes is signalled, with a buffer of one, after any change in the result of Observe.
	Changes() <-chan struct{}

	// Logs returns the last tailLines lines of an instance's output, oldest
	// first, at most 1 MiB, with the values of its secrets blanked. It fails with
	// ErrUnknownInstance if no instance has that id, and with ErrSecretsUnknown while the values are not known.
	Logs(ctx context.Context, instanceID string, tailLines int) ([]byte, error)

	// ReadLog returns the output of an instance after a position, with the values of its secrets
	// blanked. It does not wait for more output. It fails with the same errors as Logs.
	ReadLog(ctx context.Context, instanceID string, q LogQuery) (LogPage, error)

	// Restart stops one instance within its grace period and starts it again.
	Restart(ctx context.Context, instanceID string) error

	// Run works until ctx ends, and leaves the instances running.
	Run(ctx context.Context) error
}

// Drainer is a Runtime that waits for gateways. As long as a deployment is wanted, the Drainer
// stops an instance in service only once no gateway sends requests to it. A Runtime that is not a
// Drainer reports the instance as draining, waits for some time, and then stops it.
type Drainer interface {
	// Drain sets two functions for the runtime to call. released reports whether no gateway sends
	// requests to an instance any more. patience returns the longest time that the runtime may wait
	// for that. The runtime may call released at any time, for each instance that it will stop and
	// reports as draining. Neither function may call the runtime. The caller must call the returned
	// function, again, whenever a result of released may have changed. Call Drain before Run.
	Drain(released func(instanceID string) bool, patience func(instanceID string) time.Duration) (again func())
}

// Meter is a Runtime that measures the resources that its instances use.
type Meter interface {
	// Usage returns the usage of the instances, by id. It leaves out an instance whose usage is not
	// known, for example because the instance has just started, or because the platform does not
	// measure it. With an error, the usage of some instances may be known.
	Usage(ctx context.Context, instanceIDs []string) (map[string]Usage, error)
}

// NoUsageError is the error of Meter.Usage if the region's platform measures no instance at all. People of all workspaces
// see the text.
type NoUsageError struct{ Reason string }

func (e *NoUsageError) Error() string { return e.Reason }

// Usage is the resource usage of an instance.
type Usage struct {
	// CPUMillicores is the mean over the last seconds. HasCPU is false while it is not known.
	CPUMillicores float64
	HasCPU        bool
	// MemoryBytes leaves out file caches that the kernel can reclaim at once.
	MemoryBytes int64
}

// Assignment is one deployment in the form in which this region should run it.
type Assignment struct {
	// Deployment is complete: defaults are filled in, and variables are merged.
	Deployment *agentv1.Deployment
	// WorkloadKey names the workload. Empty: the deployment's id. Instances of an earlier assignment with the
	// same key are adopted: they belong to this deployment from then on, and keep their ids until they are
	// replaced.
	WorkloadKey string
	// WorkloadVersion is the version of the deployment whose id is WorkloadKey. People identify the workload
	// by it and the app's name.
	WorkloadVersion int
	// Generation grows with every change of the assignment within an Epoch, which is one history of the
	// control plane.
	Epoch, Generation int64
	// Secrets has the values of Deployment.Spec.Secrets, by variable name.
	Secrets map[string]string
	// PullSecrets has the values of the secrets for pulling the image, by secret name. Each value
	// is a Docker configuration in JSON.
	PullSecrets map[string]string
	// TemplateHash covers everything from which an instance is made, including secrets, but not the
	// number of replicas. Instances with another template hash are replaced, MaxUnavailable
	// replicas at a time.
	TemplateHash string
	// RoleTemplates has the template hashes of single roles, by role name. A role that is missing
	// here has TemplateHash. See TemplateOf.
	RoleTemplates map[string]string
	// Unit is set by a runtime that runs each instance of a deployment with several roles as a
	// workload of its own. The assignment is then for this instance only. Callers of Apply leave it
	// nil.
	Unit *Unit
}

// Unit is one instance of a deployment with several roles, and what it should do now.
type Unit struct {
	Role        string
	Group, Slot int
	// Hosts is the number of ranks of the instance. Rank is the rank that the workload runs. Epoch
	// grows with each restart of all ranks.
	Hosts, Rank, Epoch int
	// At is the path of the role in the spec, such as "roles[1].".
	At string
	// Entry is the role that routes lead to. Roles has all roles.
	Entry string
	Roles []RoleCount
	// Replicas is the number of groups.
	Replicas int
	// Waits says why the instance must not run yet, and WaitsReason is the reason's code. An empty
	// code means ReasonWaitsForRole. Holds means that the instance keeps an older template for now.
	// Leaves means that it will be removed.
	Waits, WaitsReason string
	Holds, Leaves      bool
	// Domain has the nodes on which the pods of the instance's gang run. Nil means any node.
	Domain *Domain
	// PodGroup is the PodGroup of the instance's gang. Empty means that the runtime started the gang by itself.
	PodGroup string
}

// Domain is a part of a region, such as a rack: the nodes whose label has the value.
type Domain struct {
	Label string `json:"label"`
	Value string `json:"value"`
	// Required means that pods must not run elsewhere.
	Required bool `json:"required,omitempty"`
}

// Equal reports whether both are the same domain, or both nil.
func (d *Domain) Equal(other *Domain) bool {
	if d == nil || other == nil {
		return d == other
	}
	return *d == *other
}

// IsEntryOfPool reports whether the instance is an entry instance of a pool. Gateways send requests
// to each entry instance, and the pool keeps serving without one of them.
func (u *Unit) IsEntryOfPool() bool {
	return u.Role == u.Entry && len(u.Roles) > 0 && u.Roles[0].Pool > 0
}

// MaxUnavailable is how many replicas may be out of service at the same time while instances are
// replaced, at least 1. The next replacement waits until the previous ones are ready.
func (a Assignment) MaxUnavailable() int { return max(int(a.Deployment.GetMaxUnavailable()), 1) }

// Observation is the state of everything that a runtime runs, at one moment.
type Observation struct {
	Deployments []ObservedDeployment
	Capacity    *agentv1.Capacity
	// Notices are the newest notices, at most MaxNotices, oldest first. Callers must not change them.
	Notices []Notice
}

// MaxNotices is the maximum number of notices in an observation, and in a report.
const MaxNotices = 100

// Notice is a message to people about something that the runtime did on its own; see agentv1.Notice.
type Notice struct {
	// Seq counts up from 1, for as long as the runtime exists.
	Seq          int64
	Kind         agentv1.Notice_Kind
	DeploymentID string
	Object       string
	Message      string
	// Times is how often it happened since the previous notice about the same object.
	Times int
	At    time.Time
}

// ObservedDeployment is the observed state of one deployment.
type ObservedDeployment struct {
	DeploymentID string
	// Generation and TemplateHash come from the newest applied assignment.
	Generation   int64
	TemplateHash string
	// Roles has the roles of that assignment if there are several, in the order of the spec. A
	// replica is then a group. It is complete when each role has all its instances and all of them
	// are ready.
	Roles []RoleCount
	// Removing is true from Remove until the deployment's last instance has ended.
	Removing bool
	// Unsettled means that Instances may still change without a new assignment. Instances may
	// appear that an earlier assignment wanted, or that are still reported for the previous
	// deployment of the workload.
	Unsettled bool
	Instances []Instance
}

// Instance is one process or pod.
type Instance struct {
	// ID is "ins_...". The runtime makes it. An instance keeps its ID when its process restarts in
	// the same slot. A replacement has a new ID.
	ID    string
	Role  string
	Group int
	Slot  int
	// TemplateHash is the template from which the instance was made.
	TemplateHash string
	Status       windlassv1.InstanceStatus
	// Reason is one of the constants below, or empty.
	Reason  string
	Message string
	// Address is the host:port of the first port. It is empty while there is none.
	Address string
	// BootstrapPort is the number of the port named BootstrapPort, on the host of Address. 0: there is none.
	BootstrapPort int
	RuntimeName   string
	Restarts      int
	GPUs          []string
	StartedAt     time.Time
	ReadyAt       time.Time
	// Doomed means that a rollout should not wait for the instance. It is in a crash loop (see
	// JudgeEnd), or the cause of its failure is final (a missing binary, a port that another
	// process uses).
	Doomed bool
}

// The reasons of instances and rejections.
const (
	ReasonBadCommand        = "BadCommand"        // the program does not exist, or may not be executed
	ReasonCrashLoop         = "CrashLoop"         // the program keeps ending by itself
	ReasonExited            = "Exited"            // the program ended, and is started again
	ReasonHealthCheckFailed = "HealthCheckFailed" // was ready, and its health check fails now
	ReasonStartupTimeout    = "StartupTimeout"    // did not become ready within its startup budget
	ReasonNotReady          = "NotReady"          // runs, and its health check has not passed yet
	ReasonNotRoutable       = "NotRoutable"       // passes its health check, but not through a gateway
	ReasonEjected           = "Ejected"           // ready, but every gateway ejected it because requests failed
	ReasonOOMKilled         = "OOMKilled"         // the kernel killed it at its memory limit
	ReasonPortInUse         = "PortInUse"         // another process of the host listens on its fixed port
	ReasonUnschedulable     = "Unschedulable"     // no node has the GPUs, CPU or memory that it asks for
	ReasonLost              = "Lost"              // disappeared without an exit status
	ReasonReplaced          = "Replaced"          // stopped to make room for a newer template
	ReasonStopped           = "Stopped"           // stopped on request
	ReasonUnsupported       = "Unsupported"       // the region's runtime or policy does not allow what the spec asks for
	ReasonInvalidSpec       = "InvalidSpec"       // the runtime or the cluster refuses the spec as invalid
	ReasonSecretUnavailable = "SecretUnavailable" // the agent could not get the value of a secret

	ReasonImagePullError = "ImagePullError" // the registry does not have the image, or refuses to serve it
	ReasonEvicted        = "Evicted"        // its node ran short of a resource, or was drained
	ReasonPreempted      = "Preempted"      // made room for a pod of a higher priority
	ReasonNodeLost       = "NodeLost"       // its node no longer answers
	ReasonQuotaExceeded  = "QuotaExceeded"  // the pool's or the namespace's quota has no room
	ReasonUnknownPool    = "UnknownPool"    // the region has no pool of that name
	ReasonLoadFailed     = "LoadFailed"     // no server has loaded the model, because the load failed
	ReasonUnloaded       = "Unloaded"       // no server has the model now, and a request loads it again
	ReasonWaitsForRole   = "WaitsForRole"   // starts when other roles of its group are ready
	ReasonGangTimeout    = "GangTimeout"    // not all pods of its gang had a node in time, so all were removed until the next try
	ReasonPaused         = "Paused"         // a person told the agent not to change the workload
	ReasonConflict       = "Conflict"       // another field manager owns a field that would have to change
	ReasonForbidden      = "Forbidden"      // the agent lacks a permission
	ReasonUnavailable    = "Unavailable"    // the runtime or the cluster's API does not answer, or is busy
	ReasonVolumeError    = "VolumeError"    // a volume cannot be attached or mounted
	ReasonDiskFull       = "DiskFull"       // its node has no disk space to start it
	ReasonSandboxError   = "SandboxError"   // its node cannot create its sandbox, network or container
)

// features has the features that every runtime supports. A runtime does what a feature requires, or
// refuses the assignment with a *Rejection. It ignores a field only if the field's comment says so.
var features = []agentv1.Feature{
	agentv1.Feature_FEATURE_GPU_POOL,
	agentv1.Feature_FEATURE_GPU_MIN_MEMORY,
	agentv1.Feature_FEATURE_GPU_RESOURCE_NAME,
	agentv1.Feature_FEATURE_IMAGE_PULL_SECRETS,
	agentv1.Feature_FEATURE_MODEL_CACHE,
	agentv1.Feature_FEATURE_KUBERNETES_OPTIONS,
	agentv1.Feature_FEATURE_IN_PLACE,
	agentv1.Feature_FEATURE_EXPECTED_CODES,
	agentv1.Feature_FEATURE_FOLLOW_LOGS,
	agentv1.Feature_FEATURE_SERIES,
	agentv1.Feature_FEATURE_ROLES,
	agentv1.Feature_FEATURE_POOLED_ROLES,
	agentv1.Feature_FEATURE_POOL_ORDERS,
	agentv1.Feature_FEATURE_POOL_YIELDS,
	agentv1.Feature_FEATURE_STABLE_SLOTS,
	agentv1.Feature_FEATURE_SCALE_TO_ZERO,
	agentv1.Feature_FEATURE_MODELS,
	agentv1.Feature_FEATURE_MODEL_ARTIFACTS,
	agentv1.Feature_FEATURE_PAIRING,
}

// Features returns the names of the features that every runtime supports.
func Features() []string {
	out := make([]string, len(features))
	for i, f := range features {
		out[i] = f.String()
	}
	return out
}

// RequestLoader is a Runtime that unloads models to make room for others, and loads them again when
// requests for them come. Such a model is READY for the reason ReasonUnloaded, and has no address,
// while gateways should hold its requests.
type RequestLoader interface {
	// FollowRequests sets what is known about requests. holds reports whether gateways hold all
	// requests for models that no server has. busy reports whether requests to a deployment are in
	// flight. Call it before Run.
	FollowRequests(holds func() bool, busy func(deploymentID string) bool)
	// Requested says that requests wait for the deployments. It must be repeated every few seconds
	// while they wait. Deployments that are not models are ignored.
	Requested(deploymentIDs []string)
	// Used says how many requests a deployment got since the last call.
	Used(deploymentID string, requests uint64)
	// ModelNeed returns the room that models need of all servers of an instance's app, as the mean of
	// the ready ones, in percent of one's room. ok is false if it is not known.
	ModelNeed(instanceID string) (percent float64, ok bool)
}

// IsOnRequest reports whether a deployment is a model whose requests wait while no server has it.
func IsOnRequest(spec *windlassv1.DeploymentSpec) bool {
	return spec.GetModel() != nil && spec.GetRouting().GetColdStart() != nil
}

// ErrUnknownInstance means that no instance has that id.
var ErrUnknownInstance = errors.New("unknown instance")

// SecretKeeper is a Runtime that gives secrets to instances.
type SecretKeeper interface {
	// Secrets returns the values to blank in the output of an instance. It fails with
	// ErrUnknownInstance if no instance has that id, and with ErrSecretsUnknown while the values
	// are not known.
	Secrets(instanceID string) (*redact.Values, error)
}

// ErrSecretsUnknown means that an instance's output cannot be returned yet.
var ErrSecretsUnknown = errors.New("the values of the instance's secrets are not known yet, so they cannot be removed from its output: try again once the region's agent has them")

// Rejection is a refusal of an assignment. After a retryable rejection, the same assignment may
// pass later. A final rejection lasts until a higher generation.
type Rejection struct {
	Code      string
	Message   string
	Retryable bool
}

func (r *Rejection) Error() string { return r.Code + ": " + r.Message }
