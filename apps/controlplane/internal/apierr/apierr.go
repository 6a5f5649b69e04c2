// Package apierr makes the errors that callers of the API get: each with its code, a reason that
// programs can read, the field that is wrong and what to do about it.
package apierr

import (
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Invalid refuses a field that the schema cannot judge. INVALID_ARGUMENT, VALIDATION.
func Invalid(field, message string) error {
	return rpc.Error(connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, field, message)
}

// InvalidFix is Invalid with a sentence on how to mend the field.
func InvalidFix(field, message, fix string) error {
	return rpc.ErrorWith(connect.CodeInvalidArgument, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION, Field: field, Fix: fix,
	}, message)
}

// Missing refuses a reference to a thing that the caller's workspace does not have. It is the same
// whether or not another workspace has one. NOT_FOUND.
func Missing(field, kind, ref, fix string) error {
	return rpc.ErrorWith(connect.CodeNotFound, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, Field: field, Fix: fix,
	}, fmt.Sprintf("%s %q does not exist", kind, ref))
}

// Exists refuses a name that is taken. ALREADY_EXISTS.
func Exists(field, kind, name string) error {
	return rpc.ErrorWith(connect.CodeAlreadyExists, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_ALREADY_EXISTS, Field: field, Fix: "Choose another name.",
	}, fmt.Sprintf("%s %q exists already", kind, name))
}

// Conflict refuses a change of a thing that has another resource version by now. ABORTED.
func Conflict(kind, id string, have int64) error {
	return rpc.ErrorWith(connect.CodeAborted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_CONFLICT, Field: "resource_version",
		Fix: "Read it again, then repeat the change on what you read.",
	}, fmt.Sprintf("%s %s has changed since: its resource_version is %d", kind, id, have))
}

// Denied refuses what the caller's key may not do. PERMISSION_DENIED.
func Denied(message, fix string) error {
	return rpc.ErrorWith(connect.CodePermissionDenied, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, Fix: fix,
	}, message)
}

// InUse refuses to remove a thing that others depend on. FAILED_PRECONDITION.
func InUse(message, fix string) error {
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_IN_USE, Fix: fix,
	}, message)
}

// NothingToDo refuses a call whose subject is not in a state to which it applies.
// FAILED_PRECONDITION.
func NothingToDo(message, fix string) error {
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, Fix: fix,
	}, message)
}

// OverLimit refuses what is above a limit. RESOURCE_EXHAUSTED.
func OverLimit(field, message, fix string) error {
	return rpc.ErrorWith(connect.CodeResourceExhausted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, Field: field, Fix: fix,
	}, message)
}

// WithReason is the refusal with another reason; an error that is no refusal stays as it is.
func WithReason(err error, reason windlassv1.ErrorReason) error {
	coded, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return err
	}
	detail := proto.CloneOf(rpc.DetailOf(err))
	detail.Reason = reason
	return rpc.ErrorWith(coded.Code(), detail, coded.Message())
}

// Clip shortens what a message quotes to at most n bytes, at the end of a character.
func Clip(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "")
}

// Message is the error's text, without its code.
func Message(err error) string {
	if coded, ok := errors.AsType[*connect.Error](err); ok {
		return coded.Message()
	}
	return err.Error()
}
