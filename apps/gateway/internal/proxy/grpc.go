package proxy

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Fields of gRPC's answers. "gRPC over HTTP2" in the repository of gRPC describes them, and gRFC A6 describes the
// last one.
const (
	grpcStatus   = "Grpc-Status"
	grpcMessage  = "Grpc-Message"
	grpcDetails  = "Grpc-Status-Details-Bin"
	grpcPushback = "Grpc-Retry-Pushback-Ms"
)

// speaksGRPC reports whether the client reads errors only in the form of gRPC.
func speaksGRPC(r *http.Request) bool {
	kind, ok := strings.CutPrefix(r.Header.Get("Content-Type"), "application/grpc")
	return r.ProtoMajor == 2 && ok && (kind == "" || kind[0] == '+' || kind[0] == ';')
}

// writeGRPC answers with trailers only, like a gRPC server that fails at once. Code, message and detail are
// the same as in JSON.
func (f *failure) writeGRPC(w http.ResponseWriter) {
	code := codes.Unknown
	_ = code.UnmarshalJSON([]byte(strconv.Quote(strings.ToUpper(f.connect)))) // the names differ only in spelling
	h := w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set(ErrorHeader, f.code)
	h.Set(grpcStatus, strconv.Itoa(int(code)))
	h.Set(grpcMessage, percentEncoded(f.message))
	if f.retry > 0 {
		h.Set(grpcPushback, strconv.FormatInt(f.retry.Milliseconds(), 10))
	}
	if whole, err := status.New(code, f.message).WithDetails(&windlassv1.ErrorDetail{Reason: f.reason, Fix: f.fix}); err == nil {
		if packed, err := proto.Marshal(whole.Proto()); err == nil {
			h.Set(grpcDetails, base64.RawStdEncoding.EncodeToString(packed))
		}
	}
	w.WriteHeader(http.StatusOK)
}

// percentEncoded encodes a text as a grpc-message: printable ASCII except the percent sign.
func percentEncoded(s string) string {
	var out strings.Builder
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&out, "%%%02X", c)
		} else {
			out.WriteByte(c)
		}
	}
	return out.String()
}

// grpcCode returns the gRPC status in an answer's fields. Empty: there is none.
func grpcCode(answered http.Header) string {
	if code := answered.Get(grpcStatus); code != "" {
		return code
	}
	return answered.Get(http.TrailerPrefix + grpcStatus)
}

// equivalents are the HTTP statuses of gRPC's codes, as google.rpc.Code maps them.
var equivalents = [...]int{
	0: http.StatusOK, 1: statusClientGone, 2: http.StatusInternalServerError, 3: http.StatusBadRequest, 4: http.StatusGatewayTimeout,
	5: http.StatusNotFound, 6: http.StatusConflict, 7: http.StatusForbidden, 8: http.StatusTooManyRequests, 9: http.StatusBadRequest,
	10: http.StatusConflict, 11: http.StatusBadRequest, 12: http.StatusNotImplemented, 13: http.StatusInternalServerError,
	14: http.StatusServiceUnavailable, 15: http.StatusInternalServerError, 16: http.StatusUnauthorized,
}

// outcomeStatus returns the HTTP status that says how the request ended. For gRPC, whose answers have status 200
// even after an error, it is the status that the gRPC code stands for. 0 means that there was no answer.
func (x *exchange) outcomeStatus() int {
	return statusMeant(x.status, x.grpcCode)
}

// statusMeant returns the HTTP status that a status and a gRPC code together stand for. The code may be
// empty.
func statusMeant(status int, code string) int {
	if status != http.StatusOK || code == "" {
		return status
	}
	n, err := strconv.Atoi(code)
	if err != nil || n < 0 || n >= len(equivalents) {
		return http.StatusInternalServerError // clients read it as UNKNOWN
	}
	return equivalents[n]
}
