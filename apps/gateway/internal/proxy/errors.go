package proxy

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/gateway/internal/http1"
	"github.com/windlass-run/windlass/apps/gateway/internal/pairing"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ErrorHeader has the code of an error that the gateway answered itself. It shows programs that no instance
// answered.
const ErrorHeader = "Windlass-Error"

// failure is an error that the gateway answers itself.
type failure struct {
	// code is sent in ErrorHeader, and logged.
	code   string
	status int
	// connect is the code of the Connect protocol for this error.
	connect string
	reason  windlassv1.ErrorReason
	message string
	fix     string
	// retry is the time after which the client should call again. 0: the answer has no Retry-After.
	retry time.Duration
}

// These are the gateway's own errors. Codes are for programs and never change their meaning.
var (
	failBadHost = &failure{
		code: "bad_host", status: http.StatusBadRequest, connect: "invalid_argument", reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION,
		message: "the request names no host, or an invalid one", fix: "Send a Host header with the app's hostname.",
	}
	failMethod = &failure{
		code: "bad_method", status: http.StatusNotImplemented, connect: "unimplemented", reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION,
		message: "the gateway does not pass on requests with the methods CONNECT and TRACE", fix: "Send the request to the app's hostname, with another method.",
	}
	failMalformed = &failure{
		code: "bad_request", status: http.StatusBadRequest, connect: "invalid_argument", reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION,
		message: "the request is malformed: its host, method, path or length is invalid or contradictory",
		fix:     "Send a request that follows RFC 9112 or RFC 9113. In HTTP/2, send each of :method, :path, :authority and content-length once, and no Host.",
	}
	failNoRoute = &failure{
		code: "no_route", status: http.StatusNotFound, connect: "not_found", reason: windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND,
		message: "no app has this hostname in this region", fix: "Use a host that `windlass route list` shows.",
	}
	failKey = &failure{
		code: "api_key", status: http.StatusUnauthorized, connect: "unauthenticated", reason: windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED,
		message: "the request has no API key of the app, or a key that has ended", fix: "Send `Authorization: Bearer KEY`, or X-Api-Key: KEY, with a key that `windlass app-key create` made for the app.",
	}
	failClosedPath = &failure{
		code: "closed_path", status: http.StatusForbidden, connect: "permission_denied", reason: windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED,
		message: "this path loads, unloads or lists models, which only the region's agent may do", fix: "Deploy, scale or delete the model's app.",
	}
	failNoTable = &failure{
		code: "no_table", status: http.StatusServiceUnavailable, connect: "unavailable", reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		message: "the gateway has no routes yet: it waits for the region's agent", fix: "Call again in a moment.", retry: 5 * time.Second,
	}
	failBody = &failure{
		code: "body_too_large", status: http.StatusRequestEntityTooLarge, connect: "resource_exhausted", reason: windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED,
		message: "the request's body is larger than the route allows", fix: "Send a smaller body, or raise the route's limit.",
	}
	failPairBody = &failure{
		code: "pair_body_too_large", status: http.StatusRequestEntityTooLarge, connect: "resource_exhausted", reason: windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED,
		message: fmt.Sprintf("the request's body has more than %d MiB, so it cannot go to a pair of a prefill and a decode server", pairing.MaxBody>>20), fix: "Send a smaller body.",
	}
	failPairJSON = &failure{
		code: "pair_body_not_json", status: http.StatusBadRequest, connect: "invalid_argument", reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION,
		message: "the request's body is not a JSON object in UTF-8, so it cannot go to a pair of a prefill and a decode server", fix: "Send a JSON object, without NaN, byte order mark and compression.",
	}
	failPairEngine = &failure{
		code: "pair_engine_unknown", status: http.StatusServiceUnavailable, connect: "unavailable", reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		message: "the app pairs prefill and decode servers of an engine that this gateway does not know", fix: "Update the gateway.",
	}
	failPairMemory = &failure{
		code: "pair_memory", status: http.StatusServiceUnavailable, connect: "unavailable", reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		message: "the bodies of other requests to pairs of a prefill and a decode server use the gateway's memory for them", fix: "Call again in a moment, or raise --max-pair-mib of the gateway.", retry: time.Second,
	}
	failBadBody = &failure{
		code: "bad_body", status: http.StatusBadRequest, connect: "invalid_argument", reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION,
		message: "the request's body did not arrive completely or is malformed", fix: "Send a body that matches the request's Content-Length or Transfer-Encoding.",
	}
	failSlowBody = &failure{
		code: "body_too_slow", status: http.StatusRequestTimeout, connect: "deadline_exceeded", reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION,
		message: "the request's body did not arrive in time", fix: "Send the body faster.",
	}
	// The code is only in logs and metrics, because the answer has begun and is broken off.
	failSlowAnswer = &failure{
		code: "answer_too_slow", status: http.StatusRequestTimeout, connect: "deadline_exceeded", reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION,
		message: "the client did not take the answer in time", fix: "Read the answer faster.",
	}
	failNoInstance = &failure{
		code: "no_instance", status: http.StatusServiceUnavailable, connect: "unavailable", reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		message: "no instance of the app is ready in this region", fix: "Call again in a moment.", retry: 5 * time.Second,
	}
	failBusy = &failure{
		code: "busy", status: http.StatusTooManyRequests, connect: "resource_exhausted", reason: windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED,
		message: "all instances of the app are at their limit of requests, and the queue is full", fix: "Call again in a moment.", retry: time.Second,
	}
	failWaited = &failure{
		code: "queue_timeout", status: http.StatusServiceUnavailable, connect: "unavailable", reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		message: "the request waited in the queue for the longest time that the route allows", fix: "Call again in a moment.", retry: time.Second,
	}
	// The Retry-After of the next three failures differs from answer to answer.
	failHoldFull = &failure{
		code: "hold_full", status: http.StatusServiceUnavailable, connect: "unavailable", reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		message: "the app is at zero in this region and starts now; the limit of requests that may wait for it is reached", fix: "Call again after the time in Retry-After, or raise routing.coldStart.maxHeld.", retry: time.Second,
	}
	failGatewayFull = &failure{
		code: "hold_full", status: http.StatusServiceUnavailable, connect: "unavailable", reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		message: "the app is at zero in this region and starts now; the gateway's limit of requests that may wait is reached", fix: "Call again after the time in Retry-After, or raise --max-held of the gateway.", retry: time.Second,
	}
	failHeld = &failure{
		code: "hold_timeout", status: http.StatusServiceUnavailable, connect: "unavailable", reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		message: "the app was at zero in this region and did not start within the time that requests wait for it", fix: "Call again after the time in Retry-After, or raise routing.coldStart.hold above the time that a start takes.", retry: time.Second,
	}
	failConnect = &failure{
		code: "instance_unreachable", status: http.StatusBadGateway, connect: "unavailable", reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		message: "the connection to the instance failed", fix: "Call again in a moment.",
	}
	// Metrics count this failure without a version, because the instance is not at fault.
	failExhausted = &failure{
		code: "gateway_exhausted", status: http.StatusServiceUnavailable, connect: "unavailable", reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		message: "the gateway has no descriptor, port, memory or processor time left for a connection to an instance", fix: "Call again in a moment.", retry: time.Second,
	}
	failBroken = &failure{
		code: "bad_answer", status: http.StatusBadGateway, connect: "unavailable", reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		message: "the instance broke off its answer, or its answer is not HTTP", fix: "Look at the instance's log.",
	}
	failHeader = &failure{
		code: "answer_header_too_large", status: http.StatusBadGateway, connect: "unavailable", reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		message: fmt.Sprintf("the header or trailers of the instance's answer have more than %d fields or %d KiB", http1.MaxResponseFields, http1.MaxResponseHeader>>10),
		fix:     "Change the app so that it answers with fewer or smaller header fields.",
	}
	// The client gets the status of the instance's answer, which is 503 except for pairs.
	failAnswered = &failure{
		code: "instance_error", status: http.StatusServiceUnavailable, connect: "unavailable", reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		message: "an instance answered with this status, and no other instance could take the request", fix: "Call again in a moment, or look at the instances' logs.",
	}
	failTimeout = &failure{
		code: "instance_timeout", status: http.StatusGatewayTimeout, connect: "deadline_exceeded", reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		message: "the instance did not answer in time", fix: "Raise the route's timeout, or look at the instance's log.",
	}
	failTotal = &failure{
		code: "request_timeout", status: http.StatusGatewayTimeout, connect: "deadline_exceeded", reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		message: "the request took longer than the route allows, including its wait and its answer", fix: "Raise the route's request timeout, or ask for less.",
	}
	// The client is gone and does not read the answer. The log has status 499, like the logs of other proxies.
	failGone = &failure{
		code: "client_gone", status: statusClientGone, connect: "canceled",
		message: "the client went away",
	}
)

const statusClientGone = 499

// timedOut reports whether a time limit of the route's policy passed.
func timedOut(err error) bool { return errors.Is(err, failTimeout) || errors.Is(err, failTotal) }

// Error implements error, so that a transport can return a failure.
func (f *failure) Error() string { return f.message }

// fieldsAndBody returns the fields and the body of the answer. The body is Connect's JSON with the error
// detail that programs read, as in the API.
func (f *failure) fieldsAndBody() (fields [][2]string, body []byte) {
	detail := &windlassv1.ErrorDetail{Reason: f.reason, Fix: f.fix}
	type debug struct {
		Reason string `json:"reason"`
		Fix    string `json:"fix,omitempty"`
	}
	type wireDetail struct {
		Type  string `json:"type"`
		Value string `json:"value"`
		Debug debug  `json:"debug"`
	}
	whole := struct {
		Code    string       `json:"code"`
		Message string       `json:"message"`
		Details []wireDetail `json:"details,omitempty"`
	}{Code: f.connect, Message: f.message}
	if packed, err := proto.Marshal(detail); err == nil {
		whole.Details = []wireDetail{{
			Type:  string(detail.ProtoReflect().Descriptor().FullName()),
			Value: base64.RawStdEncoding.EncodeToString(packed),
			Debug: debug{Reason: f.reason.String(), Fix: f.fix},
		}}
	}
	body, err := json.Marshal(whole)
	if err != nil { // cannot happen, because strings can always be encoded
		body = []byte(`{"code":"internal"}`)
	}
	fields = [][2]string{
		{"Content-Type", "application/json"}, {"Content-Length", strconv.Itoa(len(body))}, {"Cache-Control", "no-store"}, {ErrorHeader, f.code},
	}
	if f.retry > 0 {
		fields = append(fields, [2]string{"Retry-After", strconv.Itoa(int(f.retry / time.Second))})
	}
	return fields, body
}

// writeJSON answers in JSON. writeGRPC is for gRPC clients, which cannot read JSON.
func (f *failure) writeJSON(w http.ResponseWriter) {
	fields, body := f.fieldsAndBody()
	for _, field := range fields {
		w.Header().Set(field[0], field[1])
	}
	w.WriteHeader(f.status)
	_, _ = w.Write(body) // a client that is gone needs no answer
}
