package decide

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/balance"
	"github.com/windlass-run/windlass/apps/gateway/internal/health"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	const total = 10 * time.Second
	for name, c := range map[string]struct {
		fault Fault
		want  Verdict
	}{
		"a client that is gone":                        {Fault{ClientGone: true, TotalPassed: true, NoConnection: true}, Verdict{}},
		"a body that broke":                            {Fault{ClientBroke: true, TimedOut: true}, Verdict{}},
		"a body that is too slow":                      {Fault{TotalPassed: true, BodyAwaited: true, Silent: total}, Verdict{Failure: SlowBody}},
		"an instance that is silent all the time":      {Fault{TotalPassed: true, Silent: total/2 + 1}, Verdict{Failure: Total, Outcome: health.Timeout, HasOutcome: true}},
		"an instance that had the request late":        {Fault{TotalPassed: true, Silent: total / 2}, Verdict{Failure: Total, Outcome: health.Timeout, HasOutcome: false}},
		"an instance that is answering":                {Fault{TotalPassed: true, TimedOut: true}, Verdict{Failure: Total, Outcome: health.Timeout, HasOutcome: false}},
		"an instance that does not answer":             {Fault{TimedOut: true, Silent: 1, NoConnection: true}, Verdict{Failure: Timeout, Outcome: health.Timeout, HasOutcome: true}},
		"an answer that does not go on":                {Fault{TimedOut: true}, Verdict{Failure: Timeout, Outcome: health.Timeout, HasOutcome: true, Stalled: true}},
		"a process that was stopped meanwhile":         {Fault{TimedOut: true, Silent: 1, Late: true}, Verdict{Failure: Timeout, Outcome: health.Timeout}},
		"no descriptors":                               {Fault{NoConnection: true, Local: true}, Verdict{Failure: Exhausted}},
		"no process":                                   {Fault{NoConnection: true}, Verdict{Failure: Connect, Outcome: health.Refusal, HasOutcome: true}},
		"a header that is too large":                   {Fault{TooLarge: true}, Verdict{Failure: TooLarge, Outcome: health.Failure, HasOutcome: true}},
		"an answer that is not HTTP, or a reset":       {Fault{}, Verdict{Failure: Broken, Outcome: health.Failure, HasOutcome: true}},
		"a local lack does not excuse a broken answer": {Fault{Local: true}, Verdict{Failure: Broken, Outcome: health.Failure, HasOutcome: true}},
		"a total that passed before the body arrived":  {Fault{TotalPassed: true}, Verdict{Failure: Total, Outcome: health.Timeout, HasOutcome: false}},
	} {
		require.Equal(t, c.want, Judge(c.fault, total), name)
	}
	require.True(t, IsLate(total+500*time.Millisecond, total))
	require.False(t, IsLate(total+400*time.Millisecond, total))
	require.Equal(t, SlowAnswer, BrokenOff(Total, total/2+1, total))
	require.Equal(t, Total, BrokenOff(Total, total/2, total))
	require.Equal(t, Broken, BrokenOff(Broken, total, total))
}

func TestStatuses(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]struct {
		health health.Outcome
		work   balance.Outcome
	}{
		101: {health.Success, balance.Ignored}, 200: {health.Success, balance.Served}, 304: {health.Success, balance.Served},
		400: {health.Success, balance.Ignored}, 404: {health.Success, balance.Ignored}, 429: {health.Success, balance.Failed},
		500: {health.Failure, balance.Failed}, 503: {health.Failure, balance.Failed}, 599: {health.Failure, balance.Failed},
	} {
		require.Equal(t, want.health, Health(status), status)
		require.Equal(t, want.work, Work(status), status)
	}
}

func TestIdempotent(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"} {
		require.True(t, Idempotent(method, false, false), method)
		require.False(t, Idempotent(method, false, true), method)
	}
	for _, method := range []string{"POST", "PATCH", "CONNECT", "get", "PURGE"} {
		require.False(t, Idempotent(method, false, false), method)
		require.True(t, Idempotent(method, true, true), method)
	}
}

func TestRetries(t *testing.T) {
	t.Parallel()
	again, once := Retries{Idempotent: true, Left: 2}, Retries{Left: 2}
	for name, c := range map[string]struct {
		retries Retries
		attempt Attempt
		want    Action
		left    int
	}{
		"an answer":                                            {again, Attempt{Status: 200, Resendable: true, Sent: true}, Answer, 2},
		"an error of the app":                                  {again, Attempt{Status: 500, Resendable: true, Sent: true}, Answer, 2},
		"503":                                                  {again, Attempt{Status: 503, Resendable: true, Sent: true}, Repeat, 1},
		"503, of a request that is sent once":                  {once, Attempt{Status: 503, Resendable: true, Sent: true}, Answer, 2},
		"503, with no retry left":                              {Retries{Idempotent: true}, Attempt{Status: 503, Resendable: true, Sent: true}, Answer, 0},
		"503, with a body that is gone":                        {again, Attempt{Status: 503, Sent: true}, Answer, 2},
		"no connection":                                        {once, Attempt{Failure: Connect, Resendable: true}, Repeat, 2},
		"no connection, with no retry left":                    {Retries{}, Attempt{Failure: Connect, Resendable: true}, Repeat, 0},
		"no connection, with a body that is gone":              {again, Attempt{Failure: Connect}, Fail, 2},
		"no descriptors":                                       {again, Attempt{Failure: Exhausted, Resendable: true}, Fail, 2},
		"a client that is gone":                                {again, Attempt{Over: true, Resendable: true}, Fail, 2},
		"a reset":                                              {again, Attempt{Failure: Broken, Sent: true, Resendable: true}, Repeat, 1},
		"a reset, of a request that is sent once":              {once, Attempt{Failure: Broken, Sent: true, Resendable: true}, Fail, 2},
		"a reset, with no retry left":                          {Retries{Idempotent: true}, Attempt{Failure: Broken, Sent: true, Resendable: true}, Fail, 0},
		"a time-out":                                           {again, Attempt{Failure: Timeout, Sent: true, Resendable: true}, Fail, 2},
		"a time-out before anything was sent":                  {again, Attempt{Failure: Timeout, Resendable: true}, Repeat, 2},
		"the time for all of the request":                      {again, Attempt{Failure: Total, Sent: true, Resendable: true}, Fail, 2},
		"a server without the model":                           {Retries{Left: 2, Elsewhere: 1}, Attempt{Status: 404, NotLoaded: true, Sent: true, Resendable: true}, Elsewhere, 2},
		"a server without the model, after others":             {Retries{Left: 2}, Attempt{Status: 404, NotLoaded: true, Sent: true, Resendable: true}, Answer, 2},
		"a server without the model, with a body that is gone": {Retries{Left: 2, Elsewhere: 1}, Attempt{Status: 404, NotLoaded: true, Sent: true}, Answer, 2},
		"500 of a pair":                                        {once, Attempt{Status: 500, Resendable: true, Sent: true, Pair: true}, Repeat, 1},
		"500 of a pair, with no retry left":                    {Retries{}, Attempt{Status: 500, Resendable: true, Sent: true, Pair: true}, Answer, 0},
		"429 of a pair":                                        {once, Attempt{Status: 429, Resendable: true, Sent: true, Pair: true}, Answer, 2},
		"a reset of a pair":                                    {once, Attempt{Failure: Broken, Sent: true, Resendable: true, Pair: true}, Repeat, 1},
		"a time-out of a pair":                                 {once, Attempt{Failure: Timeout, Sent: true, Resendable: true, Pair: true}, Fail, 2},
		"a client that left a pair":                            {once, Attempt{Failure: Broken, Sent: true, Resendable: true, Pair: true, Over: true}, Fail, 2},
	} {
		r := c.retries
		require.Equal(t, c.want, r.After(c.attempt), name)
		require.Equal(t, c.left, r.Left, name)
	}
}

func TestAsksModel(t *testing.T) {
	t.Parallel()
	for _, asked := range []string{"POST /v2/models/fraud/infer", "GET /v2/models/fraud/versions/2", "POST /v1/completions"} {
		method, path, _ := strings.Cut(asked, " ")
		require.True(t, AsksModel(method, path), asked)
	}
	for _, other := range []string{"GET /v1/files/1", "GET /v2", "POST /v2/other", "POST /"} {
		method, path, _ := strings.Cut(other, " ")
		require.False(t, AsksModel(method, path), other)
	}
	require.Zero(t, NewRetries(true, 2, false).Elsewhere)
	require.Equal(t, 2, NewRetries(true, 2, true).Elsewhere)
}
