package api

import (
	"fmt"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// invalid is a field that the schema cannot judge and that is wrong.
func invalid(field, message string) error {
	return rpc.Error(connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, field, message)
}

// missing is a thing that the caller's workspace does not have. Whether another
// one has it is never told.
func missing(field, kind, ref, fix string) error {
	return rpc.ErrorWith(connect.CodeNotFound, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, Field: field, Fix: fix,
	}, fmt.Sprintf("%s %q does not exist", kind, ref))
}

func exists(field, kind, name string) error {
	return rpc.ErrorWith(connect.CodeAlreadyExists, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_ALREADY_EXISTS, Field: field, Fix: "Choose another name.",
	}, fmt.Sprintf("%s %q exists already", kind, name))
}

func conflict(kind, id string, have int64) error {
	return rpc.ErrorWith(connect.CodeAborted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_CONFLICT, Field: "resource_version",
		Fix: "Read it again, then repeat the change on what you read.",
	}, fmt.Sprintf("%s %s has changed since: its resource_version is %d", kind, id, have))
}

func denied(message, fix string) error {
	return rpc.ErrorWith(connect.CodePermissionDenied, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, Fix: fix,
	}, message)
}

func inUse(message, fix string) error {
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_IN_USE, Fix: fix,
	}, message)
}

func nothingToDo(message, fix string) error {
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, Fix: fix,
	}, message)
}

func overLimit(field, message, fix string) error {
	return rpc.ErrorWith(connect.CodeResourceExhausted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, Field: field, Fix: fix,
	}, message)
}
