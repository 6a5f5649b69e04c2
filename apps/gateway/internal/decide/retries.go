package decide

// Attempt is what became of one.
type Attempt struct {
	// Status of the answer; 0: there is none.
	Status int
	// Sent: the instance may have got some of the request.
	Sent bool
	// Over: the client is gone, or the time for all of the request has passed.
	Over bool
	// Failure, without an answer.
	Failure Failure
	// Resendable: the request's body can be sent again.
	Resendable bool
}

// Step is what comes after an attempt.
type Step int

const (
	// Answer: the answer is passed on.
	Answer Step = iota
	// Repeat: another instance is asked. An answer is dropped.
	Repeat
	// Fail: the gateway answers that it failed.
	Fail
)

// Retries is what is left of them for one request.
type Retries struct {
	// Idempotent: the request may be sent twice.
	Idempotent bool
	// Left is how many times the request may yet be sent again after an instance may have got it.
	Left int
}

// After decides what comes after an attempt.
func (r *Retries) After(a Attempt) Step {
	repeats := a.Resendable && r.Idempotent && r.Left > 0
	switch {
	case a.Status == unavailable && repeats:
		r.Left--
		return Repeat
	case a.Status != 0:
		return Answer
	case a.Over, !a.Resendable, a.Failure == Exhausted:
		return Fail
	case !a.Sent: // no instance got it, so that this is no retry
		return Repeat
	case repeats && a.Failure != Timeout && a.Failure != Total:
		r.Left--
		return Repeat
	}
	return Fail
}
