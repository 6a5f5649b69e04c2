package lifecycle

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Action is something that the owner of a Machine must do.
//
//sumtype:decl
type Action interface{ action() }

// Ref names one run of one container. A container's runs count from 0, and the count survives restarts of the
// node agent.
type Ref struct {
	Container string
	Run       int32
}

// Start runs the container. The caller must call Started with the result. After a nil result it must call
// Exited exactly once.
type Start struct {
	Ref
	// Idle is whether the program does not run, so that the run only waits for its end.
	Idle bool
	// Delay is the time before the program starts.
	Delay time.Duration
}

// Terminate asks the run to end, as SIGTERM does.
type Terminate struct{ Ref }

// Kill ends the run.
type Kill struct {
	Ref
	// As is the exit to report for a staged failure. Nil means that the real exit is reported.
	As *Exit
	// LastWords is written to the container's log before the kill.
	LastWords string
}

// Check runs one probe of a container. The caller must call Probed with the answer.
type Check struct {
	Ref
	Kind ProbeKind
	Spec *corev1.Probe
}

// Hook runs a container's preStop hook. The caller must call HookDone. The machine waits for Timeout at most.
type Hook struct {
	Ref
	Handler *corev1.LifecycleHandler
	Timeout time.Duration
}

// Record writes an event about the pod, or about one of its containers.
type Record struct {
	Container string
	Type      string
	Reason    string
	Message   string
}

// Preempt deletes the pod through the API with the pod's grace period, as the scheduler does to make room.
type Preempt struct{}

func (Start) action()     {}
func (Terminate) action() {}
func (Kill) action()      {}
func (Check) action()     {}
func (Hook) action()      {}
func (Record) action()    {}
func (Preempt) action()   {}

// Exit is how a run ended.
type Exit struct {
	Code   int32
	Signal int32
	// Reason is the reason in the API. Default: Completed for code 0, else Error.
	Reason string
	// Message is the program's termination message.
	Message string
	// LogTail is the end of the program's log. It replaces an empty Message if the container's
	// terminationMessagePolicy says so.
	LogTail string
}

// Answer is the result of a probe.
type Answer struct {
	OK bool
	// Output says why the probe failed.
	Output string
	// Err says why the probe could not run. Such an answer counts as neither success nor failure.
	Err error
}

// StartError is why a container could not be started.
type StartError struct {
	// Reason is the waiting reason: CreateContainerConfigError if an object that the environment refers to is
	// missing. Any other reason counts as a run that ended at once.
	Reason string
	Err    error
}

func (e *StartError) Error() string { return e.Err.Error() }

func (e *StartError) Unwrap() error { return e.Err }

// Reasons that the API shows.
const (
	reasonPodInitializing         = "PodInitializing"
	reasonContainerCreating       = "ContainerCreating"
	reasonCrashLoopBackOff        = "CrashLoopBackOff"
	reasonErrImagePull            = "ErrImagePull"
	reasonImagePullBackOff        = "ImagePullBackOff"
	reasonCompleted               = "Completed"
	reasonError                   = "Error"
	reasonOOMKilled               = "OOMKilled"
	reasonEvicted                 = "Evicted"
	reasonUnknown                 = "Unknown"
	ReasonConfigError             = "CreateContainerConfigError"
	ReasonStartError              = "StartError"
	exitCodeKilled          int32 = 137
	exitCodeUnknown         int32 = 255
	exitCodeStartError      int32 = 128
)

// Event reasons, as the kubelet names them.
const (
	eventPulling        = "Pulling"
	eventPulled         = "Pulled"
	eventCreated        = "Created"
	eventStarted        = "Started"
	eventFailed         = "Failed"
	eventBackOff        = "BackOff"
	eventKilling        = "Killing"
	eventUnhealthy      = "Unhealthy"
	eventFailedPreStop  = "FailedPreStopHook"
	eventInvalidFault   = "InvalidFault"
	eventPreempted      = "Preempted"
	lastWordsOfACrash   = "Loading model weights\nTraceback (most recent call last):\nRuntimeError: engine core failed to start (staged by " + FaultAnnotation + ")\n"
	evictionMessage     = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 64Mi. "
	preemptionMessage   = "default-scheduler: preempting to accommodate a higher priority pod"
	pullFailureTemplate = "rpc error: code = NotFound desc = failed to pull and unpack image %q: failed to resolve image: %s: not found"
)
