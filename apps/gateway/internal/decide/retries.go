package decide

// Attempt is the result of an attempt.
type Attempt struct {
	// Status of the answer; 0: there is none.
	Status int
	// Sent: the instance may have got some of the request.
	Sent bool
	// Over: the client is gone, or the time for all of the request has passed.
	Over bool
	// Failure is why there is no answer.
	Failure Failure
	// Resendable: the request's body can be sent again.
	Resendable bool
}

// Action is what the gateway does after an attempt.
type Action int

const (
	// Answer: pass the answer on.
	Answer Action = iota
	// Repeat: send the request to another instance, and drop the answer, if any.
	Repeat
	// Fail: answer with an error of the gateway.
	Fail
)

// Retries has the retries that a request has left.
type Retries struct {
	// Idempotent: the request may be sent twice.
	Idempotent bool
	// Left is how many more times the request may be sent after an instance may have got it.
	Left int
}

// After returns the step after an attempt. It counts a retry.
func (r *Retries) After(a Attempt) Action {
	repeats := a.Resendable && r.Idempotent && r.Left > 0
	switch {
	case a.Status == unavailable && repeats:
		r.Left--
		return Repeat
	case a.Status != 0:
		return Answer
	case a.Over, !a.Resendable, a.Failure == Exhausted:
		return Fail
	case !a.Sent: // no instance got the request, so this does not count as a retry
		return Repeat
	case repeats && a.Failure != Timeout && a.Failure != Total:
		r.Left--
		return Repeat
	}
	return Fail
}
