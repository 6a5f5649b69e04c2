package decide

import "strings"

// Attempt is the result of an attempt.
type Attempt struct {
	// Status of the answer; 0: there is none.
	Status int
	// Sent: the instance, or one of a pair, may have got some of the request.
	Sent bool
	// Over: the client is gone, or the time for all of the request has passed.
	Over bool
	// Failure is why there is no answer.
	Failure Failure
	// Resendable: the request's body can be sent again.
	Resendable bool
	// NotLoaded: the instance answered that it does not have the model. It has done no work.
	NotLoaded bool
	// Pair: the attempt was at a pair of instances. Then a request for a completion was sent, which may be sent again,
	// because it changes nothing. Leg is the leg that decided. Its instances are avoided from now on.
	Pair bool
	Leg  Leg
}

// Leg is one of the two requests that a pair of instances gets, or both.
type Leg int

const (
	// Decode is the request to the instance that answers.
	Decode Leg = iota
	// Prefill is the request to the instance that prefills the prompt.
	Prefill
	// Both is for a failure for which either instance may be the reason, such as a failed transfer between the two.
	Both
)

// String returns the leg's name in metrics.
func (l Leg) String() string { return [...]string{"decode", "prefill", "both"}[l] }

// Action is what the gateway does after an attempt.
type Action int

const (
	// Answer: pass the answer on.
	Answer Action = iota
	// Repeat: send the request to another instance, and drop the answer, if any.
	Repeat
	// Elsewhere: as Repeat if another instance is free, and as Answer if not.
	Elsewhere
	// Fail: answer with an error of the gateway.
	Fail
)

// Retries has the retries that a request has left.
type Retries struct {
	// Idempotent: the request may be sent twice.
	Idempotent bool
	// Left is how many more times the request may be sent after an instance may have got it.
	Left int
	// Elsewhere is how many more servers may be asked for a model that a server did not have.
	Elsewhere int
}

// maxElsewhere is the maximum number of further servers that one request asks for a model.
const maxElsewhere = 2

// NewRetries returns the retries of a request. models is whether its route leads to servers of models.
func NewRetries(idempotent bool, left int, models bool) Retries {
	r := Retries{Idempotent: idempotent, Left: left}
	if models {
		r.Elsewhere = maxElsewhere
	}
	return r
}

// AsksModel reports whether a server of models answers the request with 404 if it does not have the model. That holds
// for requests of the Open Inference Protocol for a model, and for requests of OpenAI's API that name a model in the
// body.
func AsksModel(method, path string) bool {
	return strings.HasPrefix(path, "/v2/models/") || method == "POST" && strings.HasPrefix(path, "/v1/")
}

// After returns the step after an attempt. It counts a retry.
func (r *Retries) After(a Attempt) Action {
	repeats := a.Resendable && (r.Idempotent || a.Pair) && r.Left > 0
	switch {
	case a.NotLoaded && a.Resendable && r.Elsewhere > 0:
		r.Elsewhere-- // the instance did nothing, so this does not count as a retry
		return Elsewhere
	case (a.Status == unavailable || a.Pair && a.Status >= serverError) && repeats:
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
