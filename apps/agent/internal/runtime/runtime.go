// Package runtime is what the agent asks of the thing that runs instances:
// apply one assignment, remove one, observe all.
//
// A Runtime is level-triggered. Apply and Remove record what is wanted, durably,
// and return; the runtime then works towards it by itself, also while the agent
// is away, and Observe tells how far it is. Calling Apply or Remove again with
// the same arguments changes nothing. Every implementation passes runtimetest.
package runtime

import (
	"context"
	"errors"
	"time"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Runtime runs the instances of a region. It is safe for concurrent use; the
// caller never has two calls for one deployment in flight.
type Runtime interface {
	// Apply makes a the wanted state of a.Deployment. It returns once that is
	// durable, not once instances run. What the runtime can never run it refuses
	// with a *Rejection and leaves as it was. The latest call wins whatever its
	// generation is: the inbox has compared (epoch, generation), and after a fork
	// generations start lower.
	Apply(ctx context.Context, a Assignment) error

	// Remove wants nothing left of the deployment: instances drain, stop, and are
	// forgotten with all that was made for them. It is done when Observe no longer
	// lists the deployment. Removing what is unknown is no error.
	Remove(ctx context.Context, deploymentID string) error

	// Observe lists every deployment the runtime has anything of, wanted or not.
	Observe(ctx context.Context) (Observation, error)

	// Changes is signalled, with a buffer of one, after anything that Observe
	// would tell changed.
	Changes() <-chan struct{}

	// Logs returns the last tailLines lines of an instance's output, oldest
	// first, at most 1 MiB, with the values of its secrets blanked. ErrUnknownInstance if
	// there is none of that id, ErrSecretsUnknown while the values are not known.
	Logs(ctx context.Context, instanceID string, tailLines int) ([]byte, error)

	// ReadLog returns what an instance wrote behind a position, with the values of its secrets
	// blanked. It does not wait for more. Errors are those of Logs.
	ReadLog(ctx context.Context, instanceID string, q LogQuery) (LogPage, error)

	// Restart stops one instance with its grace and starts it again.
	Restart(ctx context.Context, instanceID string) error

	// Run works until ctx ends, and leaves instances running then.
	Run(ctx context.Context) error
}

// Drainer is a Runtime that stops an instance in service, of a deployment that is wanted, only
// once no gateway sends to it any more. A Runtime that is no Drainer leaves its instances some
// time between the news that they stop and the order.
type Drainer interface {
	// Drain gives the runtime released, which reports whether no gateway sends to an instance any
	// more. The runtime asks it about each instance that it is about to stop and reports as
	// draining, for patience at most. released must not call the runtime. The caller calls the
	// result, again, whenever answers may have changed. Call Drain before Run.
	Drain(released func(instanceID string) bool, patience time.Duration) (again func())
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

// Assignment is one deployment as this region should run it.
type Assignment struct {
	// Deployment is complete: defaults filled in, variables merged.
	Deployment *agentv1.Deployment
	// WorkloadKey names the workload; empty: the deployment's id. Instances of an
	// earlier assignment with the same key are adopted: they are this deployment's from
	// now on, and keep their ids until they are replaced.
	WorkloadKey string
	// WorkloadVersion is the version of the deployment that WorkloadKey is the id
	// of: with the app's name, what people call the workload.
	WorkloadVersion int
	// Generation grows with every change of the assignment within an Epoch, which is a
	// history of the control plane's.
	Epoch, Generation int64
	// Secrets are the values of Deployment.Spec.Secrets by variable name.
	Secrets map[string]string
	// PullSecrets are the values of those that are for pulling the image, Docker
	// configurations in JSON, by secret name.
	PullSecrets map[string]string
	// TemplateHash covers what one instance is made of, secrets included, and not
	// the number of replicas. Instances made from another template are replaced,
	// MaxUnavailable replicas at a time.
	TemplateHash string
}

// MaxUnavailable is how many replicas at a time may be out of service while instances
// are replaced, at least 1. The next one waits for those before it to be ready.
func (a Assignment) MaxUnavailable() int { return max(int(a.Deployment.GetMaxUnavailable()), 1) }

// Observation is everything a runtime runs, at one moment.
type Observation struct {
	Deployments []ObservedDeployment
	Capacity    *agentv1.Capacity
	// Notices are the newest, MaxNotices at most, oldest first; read only.
	Notices []Notice
}

// MaxNotices is how many an observation has, and one report.
const MaxNotices = 100

// Notice tells people of something that the runtime did without being told to; see
// agentv1.Notice.
type Notice struct {
	// Seq counts up from 1, for as long as the runtime lives.
	Seq          int64
	Kind         agentv1.Notice_Kind
	DeploymentID string
	Object       string
	Message      string
	// Times that it happened since the notice before about the same object.
	Times int
	At    time.Time
}

// ObservedDeployment is what exists of one deployment.
type ObservedDeployment struct {
	DeploymentID string
	// Generation and TemplateHash of the newest assignment that was applied.
	Generation   int64
	TemplateHash string
	// Removing is set between Remove and the end of its last instance.
	Removing bool
	// Unsettled: instances may still come to be that only an assignment before asked for, or
	// be told of under the name of who had the workload before.
	Unsettled bool
	Instances []Instance
}

// Instance is one process or pod.
type Instance struct {
	// ID is "ins_..."; made by the runtime, kept through restarts of the process
	// in the same slot, new when the instance is replaced.
	ID    string
	Role  string
	Group int
	Slot  int
	// TemplateHash that it was made from.
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
	// Doomed: a rollout should not wait for it. It is in a crash loop (see JudgeEnd), or
	// its cause is final (a missing binary, a port that is taken by somebody else).
	Doomed bool
}

// Reasons that an instance, or a rejection, may carry.
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
	ReasonPaused         = "Paused"         // a person told the agent not to change the workload
	ReasonConflict       = "Conflict"       // another field manager owns a field that would have to change
	ReasonForbidden      = "Forbidden"      // the agent lacks a permission
	ReasonUnavailable    = "Unavailable"    // the runtime or the cluster's API does not answer, or is busy
	ReasonVolumeError    = "VolumeError"    // a volume cannot be attached or mounted
	ReasonDiskFull       = "DiskFull"       // its node has no disk space to start it
	ReasonSandboxError   = "SandboxError"   // its node cannot create its sandbox, network or container
)

// features that every runtime is true to: it does what each is about, refuses what it
// cannot do of it, or ignores it where the field's comment says so.
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
	agentv1.Feature_FEATURE_SCALE_TO_ZERO,
}

// Features are the names that the agent announces.
func Features() []string {
	out := make([]string, len(features))
	for i, f := range features {
		out[i] = f.String()
	}
	return out
}

// ErrUnknownInstance says that no instance has that id.
var ErrUnknownInstance = errors.New("unknown instance")

// ErrSecretsUnknown says that an instance's output cannot be repeated yet.
var ErrSecretsUnknown = errors.New("its secrets are not known yet, so that they cannot be left out: try again once the region's agent has them")

// Rejection is a refusal of an assignment. A retryable one may pass later with
// the same assignment; a final one waits for a higher generation.
type Rejection struct {
	Code      string
	Message   string
	Retryable bool
}

func (r *Rejection) Error() string { return r.Code + ": " + r.Message }
