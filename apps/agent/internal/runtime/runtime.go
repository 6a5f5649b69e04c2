// Package runtime is the interface between the agent and what runs instances: apply one assignment, remove
// one, observe all.
//
// A Runtime is level-triggered. Apply and Remove store the wanted state durably and return. The runtime then
// works towards it by itself, also while the agent is away, and Observe returns the current state. Calling
// Apply or Remove again with the same arguments changes nothing. The process and Kubernetes runtimes pass
// runtimetest. Package simulated does not, because it runs no programs: it has its own tests.
package runtime

import (
	"context"
	"errors"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Runtime runs the instances of a region. It is safe for concurrent use; the
// caller never has two calls for one deployment in flight.
type Runtime interface {
	// Apply makes a the wanted state of a.Deployment. It returns once that is durable, and not once instances
	// run. It refuses an assignment that the runtime can never run with a *Rejection, and then changes
	// nothing. The latest call wins whatever its generation is, because the inbox has compared (epoch,
	// generation), and after a fork generations start lower.
	Apply(ctx context.Context, a Assignment) error

	// Remove makes the runtime drain, stop and forget the instances of the deployment, with all that was made
	// for them. It is done when Observe no longer lists the deployment. An unknown deployment is not an
	// error.
	Remove(ctx context.Context, deploymentID string) error

	// Observe lists every deployment of which the runtime runs or stores something, wanted or not.
	Observe(ctx context.Context) (Observation, error)

	// Changes is signalled, with a buffer of one, after any change of what Observe returns.
	Changes() <-chan struct{}

	// Logs returns the last tailLines lines of an instance's output, oldest
	// first, at most 1 MiB, with the values of its secrets blanked. It fails with
	// ErrUnknownInstance if no instance has that id, and with ErrSecretsUnknown while the values are not known.
	Logs(ctx context.Context, instanceID string, tailLines int) ([]byte, error)

	// ReadLog returns what an instance wrote after a position, with the values of its secrets blanked. It
	// does not wait for more. Errors are those of Logs.
	ReadLog(ctx context.Context, instanceID string, q LogQuery) (LogPage, error)

	// Restart stops one instance with its grace and starts it again.
	Restart(ctx context.Context, instanceID string) error

	// Run works until ctx ends, and leaves the instances running.
	Run(ctx context.Context) error
}

// Drainer is a Runtime that stops an instance in service only once no gateway sends requests to it, as long as
// its deployment is wanted. A Runtime that is not a Drainer reports the instance as draining, waits for some
// time, and then stops it.
type Drainer interface {
	// Drain sets two functions for the runtime to call. released reports whether no gateway sends requests to an
	// instance any more. patience returns the longest time that the runtime may wait for that. The runtime calls
	// released as often as it likes, for each instance that it will stop and reports as draining. Neither function
	// may call the runtime. The caller must call the returned function whenever a result of released may have
	// changed. Call Drain before Run.
	Drain(released func(instanceID string) bool, patience func(instanceID string) time.Duration) (again func())
}

// Meter is a Runtime that measures what its instances use.
type Meter interface {
	// Usage returns what the instances use, by id. It leaves out an instance whose usage is not known, for example
	// because it has just started, or because the platform does not measure it.
	Usage(ctx context.Context, instanceIDs []string) (map[string]Usage, error)
}

// Usage is what an instance uses.
type Usage struct {
	// CPUMillicores is the mean of the last seconds. HasCPU is false while it is not known.
	CPUMillicores float64
	HasCPU        bool
	// MemoryBytes leaves out file caches that the kernel can reclaim at once.
	MemoryBytes int64
}

// Assignment is one deployment in the form in which this region should run it.
type Assignment struct {
	// Deployment is complete: defaults filled in, variables merged.
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
	// Secrets are the values of Deployment.Spec.Secrets by variable name.
	Secrets map[string]string
	// PullSecrets are the values of the secrets for pulling the image, Docker configurations in JSON, by
	// secret name.
	PullSecrets map[string]string
	// TemplateHash covers what one instance is made from, secrets included, but not the number of replicas.
	// Instances made from another template are replaced, MaxUnavailable replicas at a time.
	TemplateHash string
	// RoleTemplates are the template hashes of single roles, by role name. A role that is not in it has TemplateHash. See
	// TemplateOf.
	RoleTemplates map[string]string
	// Unit is set by a runtime that runs each instance of a deployment with several roles as a workload of its
	// own: the assignment is then of this instance. Callers of Apply leave it nil.
	Unit *Unit
}

// Unit is one instance of a deployment with several roles, and what it should do now.
type Unit struct {
	Role        string
	Group, Slot int
	// Hosts is the number of ranks that the instance has, and Rank is the one that the workload runs. Epoch grows with
	// each restart of all ranks.
	Hosts, Rank, Epoch int
	// At is the path of the role in the spec.
	At string
	// Entry is the role that routes lead to, and Roles are all of them.
	Entry string
	Roles []RoleCount
	// Replicas is the number of groups.
	Replicas int
	// Waits says for which roles its first start waits. Holds means that it keeps an older template for now, and
	// Leaves that it will be removed.
	Waits         string
	Holds, Leaves bool
}

// IsEntryOfPool reports whether gateways send to the instance itself and the other entry instances of its pool go on
// without it.
func (u *Unit) IsEntryOfPool() bool {
	return u.Role == u.Entry && len(u.Roles) > 0 && u.Roles[0].Pool > 0
}

// MaxUnavailable is how many replicas at a time may be out of service while instances
// are replaced, at least 1. The next one waits for those before it to be ready.
func (a Assignment) MaxUnavailable() int { return max(int(a.Deployment.GetMaxUnavailable()), 1) }

// Observation is everything a runtime runs, at one moment.
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
	// Seq counts up from 1, for as long as the runtime lives.
	Seq          int64
	Kind         agentv1.Notice_Kind
	DeploymentID string
	Object       string
	Message      string
	// Times is how often it happened since the previous notice about the same object.
	Times int
	At    time.Time
}

// ObservedDeployment is what exists of one deployment.
type ObservedDeployment struct {
	DeploymentID string
	// Generation and TemplateHash are those of the newest assignment that was applied.
	Generation   int64
	TemplateHash string
	// Roles are the roles of that assignment if it has several, in the order of the spec. A replica is then a
	// group: it is complete when each role has all its instances and all are ready.
	Roles []RoleCount
	// Removing is set between Remove and the end of its last instance.
	Removing bool
	// Unsettled means that instances may still appear that only an earlier assignment asked for, or that
	// are reported under the name of the deployment that had the workload before.
	Unsettled bool
	Instances []Instance
}

// Instance is one process or pod.
type Instance struct {
	// ID is "ins_...". The runtime makes it. It stays through restarts of the process in the same slot, and
	// is new when the instance is replaced.
	ID    string
	Role  string
	Group int
	Slot  int
	// TemplateHash is the template that it was made from.
	TemplateHash string
	Status       windlassv1.InstanceStatus
	// Reason is one of the constants below, or empty.
	Reason  string
	Message string
	// Address is host:port of the first port, empty while there is none.
	Address     string
	RuntimeName string
	Restarts    int
	GPUs        []string
	StartedAt   time.Time
	ReadyAt     time.Time
	// Doomed means that a rollout should not wait for it. It is in a crash loop (see JudgeEnd), or its cause
	// is final (a missing binary, a port that another process uses).
	Doomed bool
}

// These are the reasons of instances and rejections.
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
	ReasonWaitsForRole   = "WaitsForRole"   // starts when other roles of its group are ready
	ReasonPaused         = "Paused"         // a person told the agent not to change the workload
	ReasonConflict       = "Conflict"       // another field manager owns a field that would have to change
	ReasonForbidden      = "Forbidden"      // the agent lacks a permission
	ReasonUnavailable    = "Unavailable"    // the runtime or the cluster's API does not answer, or is busy
	ReasonVolumeError    = "VolumeError"    // a volume cannot be attached or mounted
	ReasonDiskFull       = "DiskFull"       // its node has no disk space to start it
	ReasonSandboxError   = "SandboxError"   // its node cannot create its sandbox, network or container
)

// features are the features that every runtime supports. A runtime does what a feature asks for, or refuses it
// with a *Rejection. It ignores a field only where the field's comment says so.
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
	agentv1.Feature_FEATURE_SCALE_TO_ZERO,
	agentv1.Feature_FEATURE_MODELS,
}

// Features returns the names of the features that every runtime supports.
func Features() []string {
	out := make([]string, len(features))
	for i, f := range features {
		out[i] = f.String()
	}
	return out
}

// ErrUnknownInstance means that no instance has that id.
var ErrUnknownInstance = errors.New("unknown instance")

// SecretKeeper is a Runtime that gives instances secrets.
type SecretKeeper interface {
	// Secrets returns the values to blank in what an instance says. It fails with ErrUnknownInstance if no
	// instance has that id, and with ErrSecretsUnknown while the values are not known.
	Secrets(instanceID string) (*redact.Values, error)
}

// ErrSecretsUnknown means that an instance's output cannot be returned yet.
var ErrSecretsUnknown = errors.New("the values of the instance's secrets are not known yet, so they cannot be removed from its output: try again once the region's agent has them")

// Rejection is a refusal of an assignment. A retryable assignment may pass later unchanged. A final rejection
// lasts until a higher generation.
type Rejection struct {
	Code      string
	Message   string
	Retryable bool
}

func (r *Rejection) Error() string { return r.Code + ": " + r.Message }
