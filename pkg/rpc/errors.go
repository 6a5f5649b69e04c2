package rpc

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Error returns an error that the caller can act on. field is the path in the request
// ("spec.resources.cpu_millicores") or empty. It is sent with JSON's names ("spec.resources.cpuMillicores").
// message is one sentence for the caller.
func Error(code connect.Code, reason windlassv1.ErrorReason, field, message string) *connect.Error {
	return ErrorWith(code, &windlassv1.ErrorDetail{Reason: reason, Field: field}, message)
}

// ErrorWith is Error with a detail that may also say how to fix the request.
func ErrorWith(code connect.Code, detail *windlassv1.ErrorDetail, message string) *connect.Error {
	return attachDetail(connect.NewError(code, errors.New(message)), detail)
}

// TooFast is ErrorWith for a call that the caller must repeat later. The code is RESOURCE_EXHAUSTED. The time
// to wait is in the header Retry-After (seconds) and in a RetryInfo.
func TooFast(wait time.Duration, detail *windlassv1.ErrorDetail, message string) *connect.Error {
	err := ErrorWith(connect.CodeResourceExhausted, detail, message)
	if packed, packErr := connect.NewErrorDetail(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)}); packErr == nil {
		err.AddDetail(packed)
	}
	err.Meta().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	return err
}

// attachDetail adds the detail to err, with JSON's names in its field.
func attachDetail(err *connect.Error, detail *windlassv1.ErrorDetail) *connect.Error {
	if name := jsonPath(detail.GetField()); name != detail.GetField() {
		detail = proto.CloneOf(detail)
		detail.Field = name
	}
	// A message of the program's own schema can always be packed.
	if packed, packErr := connect.NewErrorDetail(detail); packErr == nil {
		err.AddDetail(packed)
	}
	return err
}

// DetailOf returns the ErrorDetail that err carries, or nil.
func DetailOf(err error) *windlassv1.ErrorDetail {
	var coded *connect.Error
	if !errors.As(err, &coded) || coded == nil {
		return nil
	}
	for _, d := range coded.Details() {
		if value, err := d.Value(); err == nil {
			if detail, ok := value.(*windlassv1.ErrorDetail); ok {
				return detail
			}
		}
	}
	return nil
}

// ReasonOf returns the reason of err, for programs to switch on. If err has no reason, it returns the reason that
// the code implies. Examples are a body that could not be decoded, and an unreachable server. It returns UNSPECIFIED
// for nil and for errors that are not from an RPC.
func ReasonOf(err error) windlassv1.ErrorReason {
	if detail := DetailOf(err); detail != nil {
		return detail.GetReason()
	}
	var coded *connect.Error
	if !errors.As(err, &coded) || coded == nil {
		return windlassv1.ErrorReason_ERROR_REASON_UNSPECIFIED
	}
	return reasonOfCode(coded.Code())
}

// reasonOfCode returns the reason that a code implies.
func reasonOfCode(code connect.Code) windlassv1.ErrorReason {
	switch code {
	case connect.CodeInvalidArgument, connect.CodeOutOfRange:
		return windlassv1.ErrorReason_ERROR_REASON_VALIDATION
	case connect.CodeUnauthenticated:
		return windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED
	case connect.CodePermissionDenied:
		return windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED
	case connect.CodeNotFound:
		return windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND
	case connect.CodeAlreadyExists:
		return windlassv1.ErrorReason_ERROR_REASON_ALREADY_EXISTS
	case connect.CodeAborted:
		return windlassv1.ErrorReason_ERROR_REASON_CONFLICT
	case connect.CodeResourceExhausted:
		return windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded:
		return windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE
	case connect.CodeInternal, connect.CodeUnknown, connect.CodeDataLoss:
		return windlassv1.ErrorReason_ERROR_REASON_INTERNAL
	case connect.CodeCanceled, connect.CodeFailedPrecondition, connect.CodeUnimplemented:
		return windlassv1.ErrorReason_ERROR_REASON_UNSPECIFIED
	default:
		return windlassv1.ErrorReason_ERROR_REASON_UNSPECIFIED
	}
}

// validationError returns an error with the first broken rule, the path of its field, and the number of other
// broken rules.
func validationError(err *protovalidate.ValidationError) *connect.Error {
	if len(err.Violations) == 0 {
		return Error(connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "", "the request is invalid")
	}
	field, message := Violation(err.Violations[0])
	if field != "" {
		message = field + ": " + message
	}
	if more := len(err.Violations) - 1; more > 0 {
		message = fmt.Sprintf("%s (and %d more)", message, more)
	}
	return ErrorWith(connect.CodeInvalidArgument, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION, Field: field, Fix: listEnum(err.Violations[0]),
	}, message)
}

// Violation returns the path of the field that breaks a rule, with JSON's names, and the message for it.
func Violation(v *protovalidate.Violation) (field, message string) {
	field, message = jsonPath(protovalidate.FieldPathString(v.Proto.GetField())), v.Proto.GetMessage()
	if words := cmp.Or(explainPattern(v), explainUnique(v)); words != "" {
		message = words
	}
	return field, message
}
