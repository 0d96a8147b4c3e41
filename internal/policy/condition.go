package policy

import (
	"fmt"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // the zones of conditions, also where the machine has none

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/env"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/parser"

	"doorward.dev/doorward/internal/fault"
)

// ReasonCondition is the reason of a condition that is refused when saved.
const ReasonCondition = "mcp_condition_invalid"

// Bounds of a condition.
const (
	maxCondition = 4 << 10 // bytes of its text
	maxNesting   = 50
	costLimit    = 100_000 // CEL cost units of one evaluation, about 10 ms at worst
	// totalCostLimit bounds what the conditions of one decision cost together: 1000 rules at their limit would be seconds.
	totalCostLimit = 1_000_000
)

// Condition is a compiled CEL expression over one call (see Situation). It is
// immutable and safe for concurrent use.
type Condition struct {
	Text    string
	program cel.Program // nil: broken
	broken  error
	vars    map[string]bool // variables that it names
	zones   map[string]bool // time zones that it names
	fine    bool            // it asks for minutes or dates
}

// The names that conditions may use. Dotted names are variables of their own, so that a mistyped
// one is an error with a position when the rule is saved.
const (
	varRole        = "caller.role"
	varKind        = "caller.kind"
	varAgentID     = "agent.id"
	varAgentName   = "agent.name"
	varTask        = "task"
	varProject     = "project"
	varLabels      = "labels"
	varArgs        = "args"
	varServer      = "tool.server"
	varTool        = "tool.name"
	varClass       = "tool.class"
	varTier        = "tool.tier"
	varAnnotations = "tool.annotations"
	varClock       = "@clock" // no text can name it; hour(zone) and its siblings read it
)

var celEnv = sync.OnceValues(newEnv)

func newEnv() (*cel.Env, error) {
	// What reads a zone by a name of the call would open a file that the caller chose. Our own functions take literals only.
	var without []*env.Function
	for _, name := range []string{"getFullYear", "getMonth", "getDayOfYear", "getDayOfMonth", "getDate", "getDayOfWeek", "getHours", "getMinutes", "getSeconds", "getMilliseconds"} {
		without = append(without, env.NewFunction(name))
	}
	opts := []cel.EnvOption{
		cel.StdLib(cel.StdLibSubset(env.NewLibrarySubset().AddExcludedFunctions(without...))),
		cel.CrossTypeNumericComparisons(true),
		cel.ParserExpressionSizeLimit(maxCondition), cel.ParserRecursionLimit(maxNesting),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
		cel.Variable(varArgs, cel.DynType), cel.Variable(varLabels, cel.ListType(cel.StringType)),
		cel.Variable(varAnnotations, cel.MapType(cel.StringType, cel.DynType)), cel.Variable(varClock, cel.TimestampType),
	}
	for _, name := range []string{varRole, varKind, varAgentID, varAgentName, varTask, varProject, varServer, varTool, varClass, varTier} {
		opts = append(opts, cel.Variable(name, cel.StringType))
	}
	for _, f := range clockFunctions {
		opts = append(opts, f.options()...)
	}
	return cel.NewCustomEnv(opts...)
}

// clockFunction is a function of the time in a zone, written name("Europe/Berlin").
type clockFunction struct {
	name   string
	result *cel.Type
	of     func(time.Time) ref.Val
}

var clockFunctions = []clockFunction{
	{"hour", cel.IntType, func(t time.Time) ref.Val { return types.Int(t.Hour()) }},
	{"minute", cel.IntType, func(t time.Time) ref.Val { return types.Int(t.Minute()) }},
	{"weekday", cel.StringType, func(t time.Time) ref.Val { return types.String(strings.ToLower(t.Weekday().String())) }},
	{"date", cel.StringType, func(t time.Time) ref.Val { return types.String(t.Format(time.DateOnly)) }},
}

func (f clockFunction) options() []cel.EnvOption {
	hidden := "@" + f.name
	return []cel.EnvOption{
		cel.Macros(cel.GlobalMacro(f.name, 1, func(eh parser.ExprHelper, _ ast.Expr, args []ast.Expr) (ast.Expr, *common.Error) {
			if err := checkZone(args[0]); err != nil {
				return nil, eh.NewError(args[0].ID(), err.Error())
			}
			return eh.NewCall(hidden, eh.NewIdent(varClock), args[0]), nil
		})),
		cel.Function(hidden, cel.Overload(hidden+"_timestamp_string", []*cel.Type{cel.TimestampType, cel.StringType}, f.result,
			cel.BinaryBinding(func(clock, zone ref.Val) ref.Val {
				t, ok := clock.(types.Timestamp)
				name, named := zone.(types.String)
				if !ok || !named {
					return types.NewErr("%s: no time or no zone", f.name)
				}
				l, err := location(string(name))
				if err != nil {
					return types.WrapErr(err)
				}
				return f.of(t.In(l))
			}))),
	}
}

func checkZone(e ast.Expr) error {
	if e.Kind() == ast.LiteralKind {
		if name, ok := e.AsLiteral().(types.String); ok {
			_, err := location(string(name))
			return err
		}
	}
	return fmt.Errorf(`the time zone must be written out, such as "Europe/Berlin" or "UTC"`)
}

// zones are the zones that conditions name; those of the call's own text never come here.
var zones sync.Map // name -> *time.Location

func location(name string) (*time.Location, error) {
	if l, ok := zones.Load(name); ok {
		return l.(*time.Location), nil //nolint:forcetypeassert // the map holds nothing else
	}
	if name == "" || name == "Local" {
		return nil, fmt.Errorf(`the time zone must have a name, such as "Europe/Berlin" or "UTC"`)
	}
	l, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("there is no time zone %q", name)
	}
	zones.Store(name, l)
	return l, nil
}

// Compile reads a condition. Errors are fault.InvalidParams with the reason mcp_condition_invalid and
// the data line and column, both from 1.
func Compile(text string) (*Condition, error) {
	if strings.TrimSpace(text) == "" {
		return nil, invalid(1, 1, "it is empty; leave it out for a rule that always applies")
	}
	if len(text) > maxCondition {
		return nil, invalid(1, 1, fmt.Sprintf("it is longer than %d bytes", maxCondition))
	}
	e, err := celEnv()
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "conditions cannot be read")
	}
	checked, issues := e.Compile(text)
	if issues.Err() != nil {
		first := issues.Errors()[0]
		return nil, invalid(first.Location.Line(), first.Location.Column()+1, first.Message)
	}
	if t := checked.OutputType(); !t.IsExactType(cel.BoolType) {
		hint := ""
		if t.Kind() == types.DynKind {
			hint = "; compare it, such as == true"
		}
		return nil, invalid(1, 1, fmt.Sprintf("a condition must be true or false, and this is a %s%s", t, hint))
	}
	estimate, err := e.EstimateCost(checked, sizes{})
	if err != nil {
		return nil, invalid(1, 1, err.Error())
	}
	if estimate.Min > costLimit {
		return nil, invalid(1, 1, fmt.Sprintf("it costs at least %d steps, and the limit is %d", estimate.Min, costLimit))
	}
	program, err := e.Program(checked, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(costLimit))
	if err != nil {
		return nil, invalid(1, 1, err.Error())
	}
	c := &Condition{Text: text, program: program, vars: map[string]bool{}, zones: map[string]bool{}}
	c.note(checked.NativeRep())
	return c, nil
}

// Broken stands for a stored condition that this version cannot read. It fails whenever it is asked, so a rule that
// denies stays in force and one that allows does not.
func Broken(text string, err error) *Condition { return &Condition{Text: text, broken: err} }

// sizes knows no sizes: what arguments hold is bounded by the limit at run time.
type sizes struct{}

func (sizes) EstimateSize(cost.AstNode) *cost.SizeEstimate { return nil }
func (sizes) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}

// note finds out what the condition asks about.
func (c *Condition) note(a *ast.AST) {
	for _, r := range a.ReferenceMap() {
		if r.Name != "" {
			c.vars[r.Name] = true
		}
	}
	ast.PostOrderVisit(a.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind {
			return
		}
		call := e.AsCall()
		name, ours := strings.CutPrefix(call.FunctionName(), "@")
		if !ours || len(call.Args()) != 2 || call.Args()[1].Kind() != ast.LiteralKind {
			return
		}
		if zone, ok := call.Args()[1].AsLiteral().(types.String); ok {
			c.zones[string(zone)] = true
			c.fine = c.fine || name == "minute" || name == "date"
		}
	}))
}

func invalid(line, column int, message string) error {
	message = strings.ReplaceAll(message, " (in container '')", "")
	return fault.New(fault.InvalidParams, "condition, line %d, column %d: %s", line, column, message).
		Why(ReasonCondition).With("line", line).With("column", column)
}
