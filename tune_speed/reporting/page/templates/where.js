// The language of `--where`, as tune_speed/tracking/filter has it: from a text to a test of rows.
// `facts` is what trial_fields.py tells of the trials.
function parseWhere(text, facts) {
  const COMPARE = {
    "=": (a, b) => a === b,
    "!=": (a, b) => a !== b,
    "<": (a, b) => a < b,
    "<=": (a, b) => a <= b,
    ">": (a, b) => a > b,
    ">=": (a, b) => a >= b,
  };
  const KEYWORDS = ["and", "or", "not", "in", "is", "none"];
  const TOKEN = /\s*(?:(?<text>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?<sign>!=|<=|>=|==|[=<>~(),])|(?<word>[^\s()=!<>~,'"]+)|(?<end>$))/y;
  const NUMBER = /^[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?$/;
  const has = Object.hasOwn;
  const tokens = [];
  let next = 0;

  function fail(must, token) {
    throw new Error(`it must have ${must} ${token.raw ? `in place of “${token.raw}”` : "at its end"}`);
  }
  const peek = () => tokens[next];
  const take = () => tokens[next + 1 < tokens.length ? next++ : next];
  function expect(word, must) {
    const token = take();
    if (token.word !== word || token.kind === "end") fail(must, token);
  }
  function split() {
    while (!tokens.length || tokens.at(-1).kind !== "end") {
      const at = TOKEN.lastIndex;
      const found = TOKEN.exec(text);
      if (!found) fail(/^\s*['"]/.test(text.slice(at)) ? "a closing quote too" : "“!=”, “=” or a field", { raw: text.slice(at).trim()[0] });
      const [kind, raw] = Object.entries(found.groups).find(([, value]) => value !== undefined);
      tokens.push({ kind, raw, word: kind === "text" ? "" : raw.toLowerCase() });
    }
  }
  function joined(word, part, depth) {
    const parts = [part(depth)];
    while (peek().word === word) {
      take();
      parts.push(part(depth));
    }
    return (row) => (word === "or" ? parts.some((holds) => holds(row)) : parts.every((holds) => holds(row)));
  }
  const either = (depth) => joined("or", both, depth);
  const both = (depth) => joined("and", one, depth);
  function one(depth) {
    if (depth > 50) fail("at most 50 parentheses and “not” within one another", peek());
    if (peek().word === "not") {
      take();
      const part = one(depth + 1);
      return (row) => !part(row);
    }
    if (peek().word !== "(") return comparison();
    take();
    const inside = either(depth + 1);
    expect(")", "“and”, “or” or “)”");
    return inside;
  }
  function fieldOf(token) {
    const name = token.raw;
    if (token.kind !== "word" || KEYWORDS.includes(token.word) || !/^[\p{L}_][\p{L}\p{N}_.-]*$/u.test(name)) fail("a field, such as “batch_size”,", token);
    if (has(facts.unclear, name)) throw new Error(facts.unclear[name]);
    if (!has(facts.same, name) && !has(facts.rows, name)) fail("a field of a result or a recipe", token);
    return name;
  }
  function comparison() {
    const field = fieldOf(take());
    const value = has(facts.same, field) ? () => facts.same[field] : (row) => facts.rows[field][row];
    const sign = take();
    if (sign.word === "is") {
      const isNot = peek().word === "not";
      if (isNot) take();
      expect("none", "“none”");
      return (row) => (value(row) === null) !== isNot;
    }
    if (sign.word === "in" || sign.word === "not") {
      if (sign.word === "not") expect("in", "“in”");
      const wanted = list(field);
      const isIn = sign.word === "in";
      return (row) => value(row) !== null && wanted.some((each) => compare("=", value(row), each)) === isIn;
    }
    const name = sign.raw === "==" ? "=" : sign.raw;
    if (sign.kind !== "sign" || !(has(COMPARE, name) || name === "~")) fail(`a comparison, one of ${Object.keys(COMPARE).join(" ")} ~ in is,`, sign);
    const wanted = literal(field, name);
    return (row) => value(row) !== null && compare(name, value(row), wanted);
  }
  function list(field) {
    expect("(", "“(”");
    const found = [literal(field, "=")];
    while (peek().word === ",") {
      take();
      found.push(literal(field, "="));
    }
    expect(")", "“,” or “)”");
    return found;
  }
  function literal(field, sign) {
    const token = take();
    if (!["text", "word"].includes(token.kind) || KEYWORDS.includes(token.word)) fail("a value: a number, a word, or a text in quotes,", token);
    const quote = token.kind === "text" ? token.raw[0] : "";
    const raw = quote ? token.raw.slice(1, -1).replaceAll(quote + quote, quote) : token.raw;
    let value = raw;
    if (!quote && sign !== "~") {
      if (["true", "false"].includes(token.word)) value = token.word === "true";
      else if (NUMBER.test(raw)) value = Number(raw);
      if (value === Infinity || value === -Infinity) fail("a number below 1.8e308", token);
    }
    const known = has(facts.columns, field) ? facts.columns[field] : null;
    if (known === true && (sign === "~" || typeof value !== "number")) fail(`a number and = != < <= > >=, as ${field} is a number,`, token);
    if (known === null || known === true) {
      if (typeof value === "boolean" && !["=", "!="].includes(sign)) fail("a number or a text (true and false compare by = and != only)", token);
      return value;
    }
    if (known.length && ["=", "!="].includes(sign) && !known.includes(raw)) fail(`one of ${known.join(", ")}`, token);
    return raw;
  }
  function compare(sign, value, wanted) {
    if (sign === "~") return typeof value === "string" && value.toLowerCase().includes(wanted.toLowerCase());
    return typeof value === typeof wanted ? COMPARE[sign](value, wanted) : sign === "!=";
  }

  split();
  const condition = either(0);
  if (peek().kind !== "end") fail("“and”, “or” or the end", peek());
  return condition;
}
