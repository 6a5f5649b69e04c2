package rollup

import windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"

// Meaning says what a reason of instances or rejections means for a rollout.
type Meaning struct {
	// Condition of auto_rollback under which the region's failure counts.
	Condition windlassv1.AutoRollback_Condition
	// Waits means that the instance has not begun and may still begin by itself. The rollout waits until its
	// deadline, and then fails for this reason instead of DeadlineExceeded.
	Waits bool
}

const (
	crash         = windlassv1.AutoRollback_CONDITION_CRASH
	image         = windlassv1.AutoRollback_CONDITION_IMAGE
	unschedulable = windlassv1.AutoRollback_CONDITION_UNSCHEDULABLE
	late          = windlassv1.AutoRollback_CONDITION_PROGRESS
)

// agentReasons are the reasons of apps/agent/internal/runtime. TestReasons_HaveAMeaning of .ci/tools/layout
// compares the two. Agents of a later release may report other reasons.
var agentReasons = map[string]Meaning{
	"BadCommand":        {Condition: crash},
	"CrashLoop":         {Condition: crash},
	"Exited":            {Condition: crash},
	"HealthCheckFailed": {Condition: crash},
	"StartupTimeout":    {Condition: crash},
	"NotReady":          {Condition: crash},
	"NotRoutable":       {Condition: crash},
	"Ejected":           {Condition: crash},
	"OOMKilled":         {Condition: crash},
	"PortInUse":         {Condition: crash},
	"Unschedulable":     {Condition: unschedulable, Waits: true},
	"Lost":              {Condition: crash},
	"Replaced":          {Condition: crash},
	"Stopped":           {Condition: crash},
	"Unsupported":       {Condition: crash},
	"InvalidSpec":       {Condition: crash},
	"SecretUnavailable": {Condition: late, Waits: true},
	"ImagePullError":    {Condition: image, Waits: true},
	"Evicted":           {Condition: crash},
	"Preempted":         {Condition: crash},
	"NodeLost":          {Condition: crash},
	"QuotaExceeded":     {Condition: unschedulable, Waits: true},
	"UnknownPool":       {Condition: crash},
	"Paused":            {Condition: crash},
	"Conflict":          {Condition: crash},
	"Forbidden":         {Condition: crash},
	"Unavailable":       {Condition: crash},
	"VolumeError":       {Condition: crash},
	"DiskFull":          {Condition: crash},
	"SandboxError":      {Condition: crash},
	"LoadFailed":        {Condition: crash},
	"Unloaded":          {Condition: late, Waits: true},
	// Waits is not set, because the cause is in the roles that it waits for.
	"WaitsForRole": {Condition: late},
	"GangTimeout":  {Condition: unschedulable, Waits: true},
}

// MeaningOf returns the meaning of an agent's reason. An unknown reason counts as a crash.
func MeaningOf(reason string) Meaning {
	if m, ok := agentReasons[reason]; ok {
		return m
	}
	return Meaning{Condition: crash}
}
