// Package apierr makes the errors that callers of the API get. An error has a code, a reason for programs, the field
// at fault, and a sentence on how to fix it.
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

// Invalid returns the error for a field whose value breaks a rule that is not in the protos. Its code is
// INVALID_ARGUMENT.
func Invalid(field, message string) error {
	return rpc.Error(connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, field, message)
}

// InvalidFix is Invalid with a sentence on how to fix the field.
func InvalidFix(field, message, fix string) error {
	return rpc.ErrorWith(connect.CodeInvalidArgument, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION, Field: field, Fix: fix,
	}, message)
}

// Missing returns the error for a reference to an object that the caller's workspace does not have. It does not
// reveal whether another workspace has the object. Its code is NOT_FOUND.
func Missing(field, kind, ref, fix string) error {
	return rpc.ErrorWith(connect.CodeNotFound, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, Field: field, Fix: fix,
	}, fmt.Sprintf("%s %q does not exist", kind, ref))
}

// Exists returns the error for a name that another object has. Its code is ALREADY_EXISTS.
func Exists(field, kind, name string) error {
	return rpc.ErrorWith(connect.CodeAlreadyExists, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_ALREADY_EXISTS, Field: field, Fix: "Choose another name.",
	}, fmt.Sprintf("%s %q exists already", kind, name))
}

// Conflict returns the error for a change of an object that changed since the caller read it. current is its current
// resource version. Its code is ABORTED.
func Conflict(kind, id string, current int64) error {
	return rpc.ErrorWith(connect.CodeAborted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_CONFLICT, Field: "resource_version",
		Fix: "Read the object again, then apply the change to what you read.",
	}, fmt.Sprintf("%s %s has changed since you read it: its resource_version is now %d", kind, id, current))
}

// Denied returns the error for a call that the caller's key may not make. Its code is PERMISSION_DENIED.
func Denied(message, fix string) error {
	return rpc.ErrorWith(connect.CodePermissionDenied, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, Fix: fix,
	}, message)
}

// InUse returns the error for the removal of an object that other objects use. Its code is FAILED_PRECONDITION.
func InUse(message, fix string) error {
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_IN_USE, Fix: fix,
	}, message)
}

// NothingToDo returns the error for a call that has no effect in the current state of its object. Its code is
// FAILED_PRECONDITION.
func NothingToDo(message, fix string) error {
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, Fix: fix,
	}, message)
}

// OverLimit returns the error for a call that would exceed a limit. Its code is RESOURCE_EXHAUSTED.
func OverLimit(field, message, fix string) error {
	return rpc.ErrorWith(connect.CodeResourceExhausted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, Field: field, Fix: fix,
	}, message)
}

// WithReason returns err with another reason. If err has no code, it returns err as it is.
func WithReason(err error, reason windlassv1.ErrorReason) error {
	coded, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return err
	}
	detail := proto.CloneOf(rpc.DetailOf(err))
	detail.Reason = reason
	return rpc.ErrorWith(coded.Code(), detail, coded.Message())
}

// Clip returns at most the first n bytes of a text, for a message that quotes it. It cuts at a boundary between
// characters, and removes bytes that are not UTF-8.
func Clip(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "")
}

// Message returns the error's text without its code.
func Message(err error) string {
	if coded, ok := errors.AsType[*connect.Error](err); ok {
		return coded.Message()
	}
	return err.Error()
}
