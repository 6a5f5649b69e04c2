package modelstate

import "fmt"

// Model is the state of a model version in a region, which follows from its replicas.
type Model int

// The states of a model version.
const (
	// ModelUnknown means that a server that may have the model was not asked yet.
	ModelUnknown Model = iota
	// ModelProgressing means that replicas are being loaded or unloaded.
	ModelProgressing
	// ModelAvailable means that at least the minimum of replicas is available.
	ModelAvailable
	// ModelFailed means that too few replicas are available or being loaded, because loads have failed.
	ModelFailed
	// ModelScheduleFailed means that too few replicas are available or being loaded, because too few servers can hold the
	// model.
	ModelScheduleFailed
	// ModelScaledDown means that the model should have no replicas, and has none.
	ModelScaledDown
	// ModelTerminating means that the model was deleted, and servers still hold it.
	ModelTerminating
	// ModelTerminated means that the model was deleted, and no server holds it.
	ModelTerminated
	// ModelTerminateFailed means that the model was deleted, and a server did not unload it.
	ModelTerminateFailed
)

var modelNames = [...]string{
	"Unknown", "Progressing", "Available", "Failed", "ScheduleFailed", "ScaledDown", "Terminating", "Terminated", "TerminateFailed",
}

func (m Model) String() string {
	if m < 0 || int(m) >= len(modelNames) {
		return fmt.Sprintf("Model(%d)", int(m))
	}
	return modelNames[m]
}

// Wanted is what the region should have of a model version.
type Wanted struct {
	Replicas, MinReplicas int
	// Deleted is whether the model should be unloaded from all servers.
	Deleted bool
	// Short is how many replicas have no server.
	Short int
}

// Summary is a model version's state with the numbers behind it.
type Summary struct {
	State Model
	// Available, Coming, Failed and Leaving are numbers of replicas. Coming counts replicas that are being loaded, and
	// Leaving counts replicas that are being unloaded.
	Available, Coming, Failed, Leaving int
	// Partial is whether the model is available with fewer replicas than it should have.
	Partial bool
}

// Summarize returns the state of a model version. A draining replica is available.
func Summarize(w Wanted, replicas []Replica) Summary {
	var s Summary
	unloadFailed, unknown, holds := 0, 0, 0
	for _, r := range replicas {
		f := r.State.Facts()
		switch {
		case r.State == Available, r.State == Draining:
			s.Available++
		case r.State == LoadFailed:
			s.Failed++
		case f.Coming:
			s.Coming++
		case f.Leaving:
			s.Leaving++
		}
		if f.Holds {
			holds++
		}
		switch r.State {
		case UnloadFailed:
			unloadFailed++
		case Unknown:
			unknown++
		default: // The other states are counted above.
		}
	}
	s.Partial = s.Available > 0 && s.Available < w.Replicas
	needed := max(1, min(w.MinReplicas, w.Replicas))
	switch {
	case w.Deleted && holds == 0:
		s.State = ModelTerminated
	case w.Deleted && unloadFailed > 0:
		s.State = ModelTerminateFailed
	case w.Deleted:
		s.State = ModelTerminating
	case w.Replicas == 0 && holds == 0:
		s.State = ModelScaledDown
	case w.Replicas == 0:
		s.State = ModelProgressing
	case s.Available >= needed:
		s.State = ModelAvailable
	case unknown > 0:
		s.State = ModelUnknown
	case s.Available+s.Coming >= needed:
		s.State = ModelProgressing
	case s.Failed > 0:
		s.State = ModelFailed
	case w.Short > 0:
		s.State = ModelScheduleFailed
	default:
		s.State = ModelProgressing
	}
	return s
}
